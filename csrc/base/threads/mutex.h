#pragma once

#include <condition_variable>
#include <mutex>

#include "base/threads/thread_safety.h"

namespace dlslime {

// A std::mutex that clang's thread safety analysis knows.
class CAPABILITY("mutex") Mutex {
 public:
  void lock() ACQUIRE() {
    mutex_.lock();
  }
  void unlock() RELEASE() {
    mutex_.unlock();
  }

 private:
  friend class MutexLock;
  std::mutex mutex_;
};

// Holds a Mutex for a scope, but for the time between unlock() and lock().
class SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ACQUIRE(mutex) : lock_(mutex.mutex_) {}
  ~MutexLock() RELEASE() = default;
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void unlock() RELEASE() {
    lock_.unlock();
  }
  void lock() ACQUIRE() {
    lock_.lock();
  }

 private:
  friend class Condition;
  std::unique_lock<std::mutex> lock_;
};

// A std::condition_variable for a Mutex. Wait in a loop that looks at the
// state: inside a lambda the analysis would not know of the lock.
class Condition {
 public:
  void wait(MutexLock& lock) {
    changed_.wait(lock.lock_);
  }
  // False: the deadline has passed.
  template <typename Time>
  bool waitUntil(MutexLock& lock, const Time& deadline) {
    return changed_.wait_until(lock.lock_, deadline) ==
        std::cv_status::no_timeout;
  }
  void notifyOne() {
    changed_.notify_one();
  }
  void notifyAll() {
    changed_.notify_all();
  }

 private:
  std::condition_variable changed_;
};

} // namespace dlslime
