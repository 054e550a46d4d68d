#pragma once

#include <atomic>
#include <mutex>

#include "base/relax.h"

namespace dlslime {

// The engine's lock. A polling thread takes the lock again and again, and being
// awake would win a plain mutex each time, while a thread with work is still
// being woken. So a polling thread skips a look while any thread wants the
// lock, and lock() tries for a while before sleeping.
class EngineMutex {
 public:
  void lock() {
    if (mutex_.try_lock()) {
      return;
    }
    wanted_.fetch_add(1, std::memory_order_relaxed);
    if (!tryForAWhile()) {
      mutex_.lock();
    }
    wanted_.fetch_sub(1, std::memory_order_relaxed);
  }
  // NOLINTNEXTLINE(readability-identifier-naming): the standard library's name
  bool try_lock() {
    return mutex_.try_lock();
  }
  // Tries to lock, for a look that can be made later; false as well if a thread
  // is waiting in lock().
  bool lockIfUnwanted() {
    return !wanted() && mutex_.try_lock();
  }
  bool wanted() const {
    return wanted_.load(std::memory_order_relaxed) > 0;
  }
  void unlock() {
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
  std::atomic<int> wanted_{0}; // number of threads waiting in lock()
};

} // namespace dlslime
