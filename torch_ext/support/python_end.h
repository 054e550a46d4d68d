#pragma once

#include <Python.h>

#include <memory>
#include <optional>
#include <utility>

#include <pybind11/pybind11.h>

namespace dlslime {

// The end of the interpreter, which kills every other thread that asks for the
// GIL afterwards, wherever it is: in a destructor that ends the process, and
// with another status than the program's. So threads of ours ask for it in a
// PythonScope alone, and what they drop then is leaked to the process's end.

// For its scope, a thread of ours may take the GIL, or drop what Python has
// made: the interpreter's end waits for it. False: it may not any more. Threads
// that have the GIL always may.
class PythonScope {
 public:
  PythonScope();
  ~PythonScope();
  PythonScope(const PythonScope&) = delete;
  PythonScope& operator=(const PythonScope&) = delete;
  explicit operator bool() const {
    return counted_ || ours_;
  }

 private:
  bool counted_;
  bool ours_ = false; // the thread has the GIL
};

// The same, with the GIL.
class GilScope {
 public:
  GilScope() {
    if (scope_) {
      gil_.emplace();
    }
  }
  explicit operator bool() const {
    return gil_.has_value();
  }

 private:
  const PythonScope scope_;
  std::optional<pybind11::gil_scoped_acquire> gil_;
};

template <typename T>
void dropOrLeak(T& value) {
  if (const PythonScope scope; scope) {
    value = T();
  } else {
    new T(std::move(value));
  }
}

// For what may be dropped on any thread.
template <typename T>
std::shared_ptr<T> sharedWithPython(T value) {
  return {new T(std::move(value)), [](T* gone) {
            if (const PythonScope scope; scope) {
              delete gone;
            }
          }};
}

// For its scope, a thread in a PythonScope waits for something else than
// Python, and has let go of the GIL: the end does not wait for it. If that has
// come meanwhile, it stays here.
class OutsidePython {
 public:
  OutsidePython();
  ~OutsidePython();
  OutsidePython(const OutsidePython&) = delete;
  OutsidePython& operator=(const OutsidePython&) = delete;

 private:
  const int depth_;
};

// The interpreter has begun to end, or is about to: nothing of ours ends with
// what it drops, since peers are to hear of the process's end by that alone.
bool pythonEnds();
// The interpreter's last hook: what is under way may finish for a moment, and
// threads of ours leave their PythonScopes. Without the GIL.
void beginPythonEnd();

// At the end of a wait of a Python thread that has let go of the GIL: if the
// interpreter ends, it does not go back there, where daemon threads are killed
// on the way.
class StaysWhenPythonEnds {
 public:
  StaysWhenPythonEnds() = default;
  ~StaysWhenPythonEnds();
  StaysWhenPythonEnds(const StaysWhenPythonEnds&) = delete;
  StaysWhenPythonEnds& operator=(const StaysWhenPythonEnds&) = delete;
};

} // namespace dlslime
