#pragma once

#include <mutex>

#include "engine/state/engine_state.h"

namespace dlslime {

// Scope of engine work under the lock. Operations ended in the scope are
// released, and waiting threads told, after unlocking: freeing a tensor may
// need the GIL, and the GIL's holder may be waiting for the lock. All changes
// of the state are made under an EngineLock.
class SCOPED_CAPABILITY EngineLock {
 public:
  explicit EngineLock(EngineState& state) ACQUIRE(kEngineLock)
      : state_(state), lock_(state.mutex) {}
  // Takes over the lock that the caller has taken.
  EngineLock(EngineState& state, std::adopt_lock_t taken) REQUIRES(kEngineLock)
      : state_(state), lock_(state.mutex, taken) {}
  ~EngineLock() RELEASE() NO_THREAD_SAFETY_ANALYSIS {
    if (lock_.owns_lock()) {
      leave();
    }
  }
  EngineLock(const EngineLock&) = delete;
  EngineLock& operator=(const EngineLock&) = delete;

  void enterAgain() ACQUIRE() NO_THREAD_SAFETY_ANALYSIS {
    lock_.lock();
  }
  void leave() RELEASE() NO_THREAD_SAFETY_ANALYSIS {
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
