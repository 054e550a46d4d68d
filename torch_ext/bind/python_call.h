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

// A Python callable that C++ threads may call, copy and drop without the GIL.
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

// `make` is called with the GIL; the C++ caller must not hold it for long, so
// what blocks inside releases it.
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
      // What a handler of a signal raises is the user's; other threads run
      // none.
      if (!error.matches(PyExc_RuntimeError) && onMainThread()) {
        throw;
      }
      // A C++ thread can't raise; keep the text, without the traceback, and let
      // go of the objects while we hold the GIL.
      const std::string text = pybind11::str(error.value());
      throw Error(ErrorCode::kUnavailable, text);
    }
  };
}

// Of dlslime_backend._backend's make_pair_group.
inline MakePairGroup pairGroupMaker(pybind11::function function) {
  return callFromAnyThread<
      const c10::intrusive_ptr<c10d::Store>&,
      int,
      std::chrono::milliseconds>(std::move(function));
}

} // namespace dlslime
