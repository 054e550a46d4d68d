#pragma once

#include <atomic>
#include <mutex>

#include "base/relax.h"
#include "base/threads/thread_holder.h"
#include "base/threads/thread_safety.h"

namespace dlslime {

// What clang's thread safety analysis calls the engine's lock. A program has
// one engine, and the analysis need not tell several engines of a test apart.
class CAPABILITY("engine lock") EngineRole {};
inline constexpr EngineRole kEngineLock;

// The engine's lock. A polling thread takes the lock again and again, and being
// awake would win a plain mutex each time, while a thread with work is still
// being woken. So a polling thread skips a look while any thread wants the
// lock, and lock() tries for a while before sleeping.
class EngineMutex {
 public:
  void lock() ACQUIRE(kEngineLock) NO_THREAD_SAFETY_ANALYSIS {
    if (try_lock()) {
      return;
    }
    wanted_.fetch_add(1, std::memory_order_relaxed);
    if (!tryForAWhile()) {
      mutex_.lock();
    }
    wanted_.fetch_sub(1, std::memory_order_relaxed);
    holder_.setThis();
  }
  // NOLINTNEXTLINE(readability-identifier-naming): the standard library's name
  bool try_lock() TRY_ACQUIRE(true, kEngineLock) NO_THREAD_SAFETY_ANALYSIS {
    const bool locked = mutex_.try_lock();
    if (locked) {
      holder_.setThis();
    }
    return locked;
  }
  // Tries to lock, for a look that can be made later; false as well if a thread
  // is waiting in lock().
  bool lockIfUnwanted()
      TRY_ACQUIRE(true, kEngineLock) NO_THREAD_SAFETY_ANALYSIS {
    return !wanted() && try_lock();
  }
  // Tells the analysis, where it can't know, that the calling thread holds the
  // lock; in checked builds, ends the process unless the thread does.
  void assertHeld() const ASSERT_CAPABILITY(kEngineLock) {
    holder_.requireThis("the engine's lock is not held");
  }
  bool wanted() const {
    return wanted_.load(std::memory_order_relaxed) > 0;
  }
  void unlock() RELEASE(kEngineLock) NO_THREAD_SAFETY_ANALYSIS {
    holder_.setNone();
    mutex_.unlock();
  }

 private:
  bool tryForAWhile() {
    constexpr int kTries =
        100; // some microseconds: as long as most threads hold the lock
    for (int i = 0; i < kTries; ++i) {
      relaxProcessor();
      if (mutex_.try_lock()) {
        return true;
      }
    }
    return false;
  }

  std::mutex mutex_;
  ThreadHolder holder_;
  std::atomic<int> wanted_{0}; // number of threads waiting in lock()
};

} // namespace dlslime
