#pragma once

#include <Python.h>

#include <memory>
#include <optional>
#include <utility>

#include <pybind11/pybind11.h>

namespace dlslime {

// Once the interpreter is ending, any thread but the main thread is killed when
// it asks for the GIL. Inside a destructor, such a kill ends the process with a
// wrong exit status. So the library's threads ask for the GIL only in a
// PythonScope; afterwards they leak Python's objects instead of dropping them.

// While the scope lives, a thread of the library may take the GIL or drop
// Python's objects, and the interpreter's end waits. Converts to false once the
// interpreter ends, except on the main thread and on threads that have the GIL.
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
  bool ours_ = false; // the main thread, or one with the GIL
};

// A PythonScope that also takes the GIL.
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

// Returns a pointer that any thread may drop.
template <typename T>
std::shared_ptr<T> sharedWithPython(T value) {
  return {new T(std::move(value)), [](T* gone) {
            if (const PythonScope scope; scope) {
              delete gone;
            }
          }};
}

// Lets the interpreter end without waiting for a thread in a PythonScope that
// has released the GIL and waits for something other than Python. If the
// interpreter ends meanwhile, the destructor does not return.
class OutsidePython {
 public:
  OutsidePython();
  ~OutsidePython();
  OutsidePython(const OutsidePython&) = delete;
  OutsidePython& operator=(const OutsidePython&) = delete;

 private:
  const int depth_;
};

// Whether the interpreter has begun to end, or is about to. Destructors then
// end nothing, because peers are to learn of the end from the end of the
// process alone.
bool pythonEnds();
// Runs as the interpreter's last hook, without the GIL. Operations may finish
// for a moment, and the library's threads leave their PythonScopes.
void beginPythonEnd();

// Stands before a wait of a Python thread that has released the GIL. If the
// interpreter ends, the destructor does not return, because Python kills daemon
// threads on the way back.
class StaysWhenPythonEnds {
 public:
  StaysWhenPythonEnds() = default;
  ~StaysWhenPythonEnds();
  StaysWhenPythonEnds(const StaysWhenPythonEnds&) = delete;
  StaysWhenPythonEnds& operator=(const StaysWhenPythonEnds&) = delete;
};

} // namespace dlslime
