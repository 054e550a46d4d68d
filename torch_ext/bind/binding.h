#pragma once

#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <span>

#include "base/clock.h"
#include "torch_ext/one_sided/part_spec.h"
#include "torch_ext/support/gil.h"
#include "torch_ext/support/timeouts.h"

namespace dlslime {

// Helpers for the bindings of one-sided transfers.

namespace py = pybind11;

// Calls `body` without the GIL. An Error thrown by `body` becomes a Python
// exception.
template <typename Body>
auto released(const Body& body) {
  Status problem;
  try {
    const py::gil_scoped_release release;
    const StaysWhenPythonEnds stays;
    return body();
  } catch (const Error& error) {
    problem = error.status();
  }
  raise(problem);
}

inline ByteSpan spanOf(const py::bytes& bytes) {
  const auto view = static_cast<std::string_view>(bytes);
  return std::as_bytes(std::span(view.data(), view.size()));
}

inline py::bytes toPython(ByteSpan bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

inline std::shared_ptr<Bytes> copied(const py::bytes& bytes) {
  const auto span = spanOf(bytes);
  return std::make_shared<Bytes>(span.begin(), span.end());
}

} // namespace dlslime
