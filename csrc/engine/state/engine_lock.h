#pragma once

#include <mutex>

#include "engine/state/engine_state.h"

namespace dlslime {

// Scope of engine work under the lock. Operations ended in the scope are
// released, and waiting threads told, after unlocking: freeing a tensor may
// need the GIL, and the GIL's holder may be waiting for the lock. All changes
// of the state are made under an EngineLock.
class EngineLock {
 public:
  explicit EngineLock(EngineState& state) : state_(state), lock_(state.mutex) {}
  EngineLock(EngineState& state, std::try_to_lock_t attempt)
      : state_(state), lock_(state.mutex, attempt) {}
  // Takes the lock only if no thread holds or wants the lock: for a look that
  // can be made later.
  struct IfUnwanted {};
  EngineLock(EngineState& state, IfUnwanted)
      : state_(state), lock_(state.mutex, std::defer_lock) {
    if (state.mutex.lockIfUnwanted()) {
      lock_ = std::unique_lock(state.mutex, std::adopt_lock);
    }
  }
  ~EngineLock() {
    if (lock_.owns_lock()) {
      leave();
    }
  }
  EngineLock(const EngineLock&) = delete;
  EngineLock& operator=(const EngineLock&) = delete;

  explicit operator bool() const {
    return lock_.owns_lock();
  }
  void enterAgain() {
    lock_.lock();
  }
  void leave() {
    if (state_.completions.empty()) {
      lock_.unlock();
      return;
    }
    auto ended = state_.completions.take();
    lock_.unlock();
    state_.notifyDone();
    ended.tell();
  }

 private:
  EngineState& state_;
  std::unique_lock<EngineMutex> lock_;
};

} // namespace dlslime
