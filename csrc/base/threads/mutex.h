#pragma once

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <ctime>
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

// A condition variable for a Mutex, with deadlines of the monotonic clock.
// std::condition_variable would need a newer C library than wheels may, or wait
// by a clock that jumps. Wait in a loop that looks at the state: inside a
// lambda the analysis would not know of the lock.
class Condition {
 public:
  Condition() {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&changed_, &attributes);
    pthread_condattr_destroy(&attributes);
  }
  // Destroys nothing: glibc's condition holds nothing, and in a forked child
  // pthread_cond_destroy() would wait for waiters of the parent.
  ~Condition() = default;
  Condition(const Condition&) = delete;
  Condition& operator=(const Condition&) = delete;

  void wait(MutexLock& lock) {
    pthread_cond_wait(&changed_, lock.lock_.mutex()->native_handle());
  }
  // False: the deadline has passed.
  bool waitUntil(
      MutexLock& lock,
      std::chrono::steady_clock::time_point deadline) {
    using std::chrono::duration_cast;
    const auto since =
        std::max(deadline.time_since_epoch(), std::chrono::nanoseconds(0));
    const auto whole = duration_cast<std::chrono::seconds>(since);
    const timespec until{whole.count(), (since - whole).count()};
    return pthread_cond_timedwait(
               &changed_, lock.lock_.mutex()->native_handle(), &until) == 0;
  }
  void notifyOne() {
    pthread_cond_signal(&changed_);
  }
  void notifyAll() {
    pthread_cond_broadcast(&changed_);
  }

 private:
  pthread_cond_t changed_{};
};

} // namespace dlslime
