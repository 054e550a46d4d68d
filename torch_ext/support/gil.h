#pragma once

#include <Python.h>

#include <memory>
#include <utility>

#include "engine/engine.h"
#include "torch_ext/support/python_end.h"

namespace dlslime {

// Releases the GIL while the object lives, if the calling thread has the GIL: a
// destructor cannot know.
class WithoutGil {
 public:
  WithoutGil()
      : state_(
            Py_IsInitialized() != 0 && PyGILState_Check() != 0
                ? PyEval_SaveThread()
                : nullptr) {}
  ~WithoutGil() {
    if (state_ != nullptr) {
      {
        const StaysWhenPythonEnds stays;
      }
      PyEval_RestoreThread(state_);
    }
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* const state_;
};

// Returns the process's engine for owners that Python may drop. The last owner
// joins threads, which may need the GIL to release tensors.
inline std::shared_ptr<Engine> acquireEngine() {
  auto engine = Engine::acquire();
  auto* const raw = engine.get();
  return {raw, [held = std::move(engine)](Engine* /*raw*/) mutable {
            if (pythonEnds()) {
              new std::shared_ptr<Engine>(std::move(held));
              return;
            }
            const WithoutGil others;
            held.reset();
          }};
}

} // namespace dlslime
