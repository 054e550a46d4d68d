#include "engine/progress/progress.h"

#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "fakes/world.h"

namespace dlslime::testing {
namespace {

// An engine with nothing to do, unless a test says so.
class ScriptedSource final : public ProgressSource {
 public:
  bool step(const Operation* /*awaited*/) override {
    ++steps;
    return news;
  }
  bool beginSleep() override {
    if (onBeginSleep) {
      onBeginSleep();
    }
    ++sleeps;
    return true;
  }
  bool endsSoon() override {
    return onEndsSoon && onEndsSoon();
  }
  void endSleep() override {}
  void onReady(const std::vector<uint64_t>& /*tokens*/) override {
    ++heard;
  }

  std::function<void()> onBeginSleep;
  std::function<bool()> onEndsSoon;
  std::atomic<int> steps{0}, sleeps{0}, heard{0};
  std::atomic<bool> news{false}; // at every look
};

class ProgressTest : public ::testing::Test {
 protected:
  ProgressTest() {
    progress.start();
  }
  ~ProgressTest() override {
    progress.stop();
  }
  // Completes an operation, as releasing an EngineLock does.
  void complete(Operation& operation) {
    operation.settle({});
    progress.notifyDone();
  }
  void untilAsleep() {
    while (source.sleeps == 0) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    std::this_thread::sleep_for(milliseconds(20));
  }
  static bool soon(const std::atomic<int>& counter, int value) {
    return eventually([&] { return counter == value; });
  }

  ScriptedSource source;
  EpollWaiter epoll;
  Progress progress{source, epoll, microseconds(0)};
};

TEST_F(ProgressTest, WaitReturnsAtOnceForWhatIsDone) {
  const auto operation = makeSend(0, 0, {});
  operation->settle({});
  EXPECT_TRUE(progress.wait(*operation, Clock::now()));
}

TEST_F(ProgressTest, WaitGivesUpAtItsDeadline) {
  const auto operation = makeSend(0, 0, {});
  const auto start = Clock::now();
  EXPECT_FALSE(progress.wait(*operation, start + milliseconds(30)));
  EXPECT_GE(Clock::now() - start, milliseconds(30));
  EXPECT_LT(Clock::now() - start, milliseconds(5000));
}

TEST_F(ProgressTest, WaitWithAPassedDeadlineStillLooksOnce) {
  const auto operation = makeSend(0, 0, {});
  const int before = source.steps;
  EXPECT_FALSE(progress.wait(*operation, Clock::now() - milliseconds(1)));
  EXPECT_GT(source.steps, before);
}

// A peer can cause endless news.
TEST(ProgressNews, WithoutEndHoldsUpNoDeadline) {
  ScriptedSource source;
  source.news = true;
  EpollWaiter epoll;
  Progress progress(source, epoll, microseconds(0));
  const auto operation = makeSend(0, 0, {});
  EXPECT_FALSE(progress.wait(*operation, deadlineAfter(milliseconds(10))));
}

TEST(ProgressNews, WithoutEndHidesNoDeathAndHoldsUpNoStop) {
  ScriptedSource source;
  source.news = true;
  EpollWaiter epoll;
  Progress progress(
      source, epoll, microseconds(0), Progress::kMostSpin, kAnHour);
  progress.start();
  progress.attend();
  EXPECT_TRUE(eventually([&] { return source.steps > 10000; }));
  EXPECT_TRUE(eventually([&] { return source.heard > 1; }));
  progress.stop();
}

// There is no background thread, so only the caller could sleep.
TEST(ProgressSpin, WaiterStaysAwakeForWhatEndsSoon) {
  ScriptedSource source;
  EpollWaiter epoll;
  Progress progress(source, epoll, microseconds(1), kAnHour);
  const auto operation = makeSend(0, 0, {});
  int asked = 0;
  source.onEndsSoon = [&] {
    if (++asked == 2) {
      operation->settle({});
    }
    return true;
  };
  source.onBeginSleep = [&] { operation->settle({}); };
  EXPECT_TRUE(progress.wait(*operation, deadlineAfter(kAnHour)));
  EXPECT_EQ(asked, 2);
  EXPECT_EQ(source.sleeps, 0);
}

TEST(ProgressSpin, WaiterSleepsWhenWhatShouldEndSoonDoesNot) {
  ScriptedSource source;
  EpollWaiter epoll;
  Progress progress(source, epoll, microseconds(1));
  const auto operation = makeSend(0, 0, {});
  source.onEndsSoon = [] { return true; };
  source.onBeginSleep = [&] {
    operation->settle({});
    epoll.kick();
  };
  EXPECT_TRUE(progress.wait(*operation, deadlineAfter(kAnHour)));
  EXPECT_EQ(source.sleeps, 1);
}

TEST_F(
    ProgressTest,
    SleepingWaiterWakesWhenAnotherThreadCompletesItsOperation) {
  const auto operation = makeSend(0, 0, {});
  std::atomic<int> returned{0};
  std::thread waiter([&] {
    progress.wait(*operation, deadlineAfter(milliseconds(20000)));
    ++returned;
  });
  untilAsleep();
  complete(*operation);
  EXPECT_TRUE(soon(returned, 1)) << "it sleeps on, over a finished operation";
  epoll.kick();
  waiter.join();
}

// There is no background thread to wake the caller.
TEST(ProgressSpin, CompletionWhileFallingAsleepIsNotMissed) {
  ScriptedSource source;
  EpollWaiter epoll;
  Progress progress(source, epoll, microseconds(0));
  const auto operation = makeSend(0, 0, {});
  // A second thread completes the operation between the waiter's look and its
  // sleep.
  source.onBeginSleep = [&] {
    operation->settle({});
    progress.notifyDone();
  };
  const auto start = Clock::now();
  EXPECT_TRUE(progress.wait(*operation, deadlineAfter(milliseconds(60000))));
  EXPECT_LT(Clock::now() - start, milliseconds(50000)) << "not by its deadline";
}

TEST_F(ProgressTest, AllOfEightWaitersWake) {
  const auto operation = makeSend(0, 0, {});
  std::atomic<int> returned{0};
  std::vector<std::thread> waiters;
  for (int i = 0; i < 8; ++i) {
    waiters.emplace_back([&] {
      progress.wait(*operation, deadlineAfter(milliseconds(20000)));
      ++returned;
    });
  }
  untilAsleep();
  complete(*operation);
  EXPECT_TRUE(soon(returned, 8)) << returned << " of 8 have returned";
  epoll.kick();
  for (auto& waiter : waiters) {
    waiter.join();
  }
}

TEST_F(ProgressTest, FollowersTakeOverWhenTheSleepingWaiterTimesOut) {
  const auto first = makeSend(0, 0, {});
  const auto second = makeSend(0, 1, {});
  std::thread sleeping([&] {
    EXPECT_FALSE(progress.wait(*first, deadlineAfter(milliseconds(50))));
  });
  untilAsleep();
  std::atomic<int> returned{0};
  std::thread follower([&] {
    progress.wait(*second, deadlineAfter(milliseconds(20000)));
    ++returned;
  });
  sleeping.join();
  std::this_thread::sleep_for(milliseconds(20));
  // By then the follower must sleep on the descriptors, so that a kick makes
  // the follower look, as news from a peer would.
  const int before = source.steps;
  epoll.kick();
  EXPECT_TRUE(eventually([&] { return source.steps > before; }));
  complete(*second);
  epoll.kick();
  EXPECT_TRUE(soon(returned, 1));
  follower.join();
}

TEST_F(ProgressTest, BackgroundThreadSleepsWhenNoThreadWaits) {
  untilAsleep();
  const int before = source.steps;
  std::this_thread::sleep_for(milliseconds(200));
  EXPECT_LE(source.steps - before, 20);
}

// After a caller's look, the background thread would leave looking to the
// caller for a whole tick.
TEST(ProgressTicks, WhatIsToBeToldIsLookedForAtOnce) {
  ScriptedSource source;
  EpollWaiter epoll;
  Progress progress(
      source, epoll, microseconds(0), Progress::kMostSpin, kAnHour);
  progress.start();
  for (int round = 1; round <= 3; ++round) {
    progress.noteLook();
    progress.attend();
    // The thread looks, finds nothing, and sleeps.
    EXPECT_TRUE(eventually([&] { return source.sleeps >= round; })) << round;
  }
  progress.stop();
}

TEST_F(ProgressTest, WakeMakesTheSleepingThreadLook) {
  untilAsleep();
  const int before = source.steps;
  progress.wake();
  EXPECT_TRUE(eventually([&] { return source.steps > before; }));
}

TEST_F(ProgressTest, StopJoinsWhileTheBackgroundThreadSleeps) {
  untilAsleep();
  progress.stop();
  progress.stop();
}

} // namespace
} // namespace dlslime::testing
