#pragma once

#include <atomic>
#include <mutex>

#include "base/relax.h"

namespace dlslime {

// The engine's lock. A thread that looks for news takes it again and again. It
// would get a plain mutex each time, since it is awake, while a thread that has
// work is still being woken. So a look is left out while others want the lock,
// and those try for a while before they sleep.
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
  // For a look that can be made later: false as well if another thread waits.
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
    constexpr int kTries = 100; // some microseconds: as long as most hold it
    for (int i = 0; i < kTries; ++i) {
      relaxProcessor();
      if (mutex_.try_lock()) {
        return true;
      }
    }
    return false;
  }

  std::mutex mutex_;
  std::atomic<int> wanted_{0}; // threads in lock()
};

} // namespace dlslime
