#pragma once

#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <pybind11/chrono.h>

#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "torch_ext/c10d/torch_carrier.h"
#include "torch_ext/support/python_end.h"
#include "torch_ext/support/waiting.h"

namespace dlslime {

// Wraps a Python callable in a pointer that C++ threads may copy and drop
// without the GIL. A call needs the GIL.
inline std::shared_ptr<pybind11::function> shareable(
    pybind11::function function) {
  return {
      new pybind11::function(std::move(function)),
      [](pybind11::function* gone) {
        if (const GilScope gil; gil) {
          delete gone;
        }
      }};
}

// Returns a function that calls the Python `function` with the GIL, from any
// thread. Code that blocks inside `function` releases the GIL, so that the
// calling thread does not hold the GIL for long.
template <typename... Args>
std::function<c10::intrusive_ptr<c10d::Backend>(Args...)> callFromAnyThread(
    pybind11::function function) {
  return [shared = shareable(std::move(function))](Args... args) {
    const GilScope gil;
    if (!gil) {
      throw Error(
          ErrorCode::kCancelled, "this process's Python has begun to end");
    }
    try {
      return (*shared)(args...)
          .template cast<c10::intrusive_ptr<c10d::Backend>>();
    } catch (pybind11::error_already_set& error) {
      // Only the main thread runs signal handlers. An exception on the main
      // thread, unless a RuntimeError, may come from a handler and goes on to
      // the user.
      if (!error.matches(PyExc_RuntimeError) && onMainThread()) {
        throw;
      }
      // A C++ thread cannot raise a Python exception: keep the text without the
      // traceback, and drop the Python objects while the thread holds the GIL.
      const std::string text = pybind11::str(error.value());
      throw Error(ErrorCode::kUnavailable, text);
    }
  };
}

// Wraps make_pair_group() of dlslime_backend._backend.
inline MakePairGroup pairGroupMaker(pybind11::function function) {
  return callFromAnyThread<
      const c10::intrusive_ptr<c10d::Store>&,
      int,
      std::chrono::milliseconds>(std::move(function));
}

} // namespace dlslime
