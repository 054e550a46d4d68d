#include "base/threads/mutex.h"

#include <gtest/gtest.h>

#include <thread>

#include "base/clock.h"

namespace dlslime::testing {
namespace {

TEST(Condition, WaitEndsAtTheDeadlineAndNotBefore) {
  Mutex mutex;
  Condition changed;
  MutexLock lock(mutex);
  const auto deadline = Clock::now() + milliseconds(20);
  while (changed.waitUntil(lock, deadline)) {
  }
  EXPECT_GE(Clock::now(), deadline);
}

TEST(Condition, DeadlinesFarInThePastAndTheFuture) {
  Mutex mutex;
  Condition changed;
  MutexLock lock(mutex);
  EXPECT_FALSE(changed.waitUntil(lock, TimePoint()));
  EXPECT_FALSE(changed.waitUntil(lock, TimePoint::min()));
  std::thread other([&] {
    const MutexLock guard(mutex);
    changed.notifyAll();
  });
  EXPECT_TRUE(changed.waitUntil(lock, never()));
  lock.unlock();
  other.join();
}

TEST(Condition, NotifyWakesAWaiter) {
  Mutex mutex;
  Condition changed;
  bool set = false;
  std::thread other([&] {
    const MutexLock guard(mutex);
    set = true;
    changed.notifyOne();
  });
  MutexLock lock(mutex);
  while (!set) {
    changed.wait(lock);
  }
  lock.unlock();
  other.join();
  EXPECT_TRUE(set);
}

} // namespace
} // namespace dlslime::testing
