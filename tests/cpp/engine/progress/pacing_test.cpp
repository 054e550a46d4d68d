#include "engine/progress/pacing.h"

#include <gtest/gtest.h>

#include <sched.h>

#include <atomic>
#include <thread>

#include "engine/progress/yield_backoff.h"

namespace dlslime {
namespace {

TEST(SyscallCost, IsMeasuredOnceAndReasonable) {
  const auto cost = syscallCost();
  EXPECT_GT(cost, nanoseconds(0));
  EXPECT_LE(cost, microseconds(100));
  EXPECT_EQ(cost, syscallCost());
}

constexpr nanoseconds kBareMetal{300};
constexpr nanoseconds kUserModeKernel{25'000};

TEST(Pacing, IsConstantOnBareMetal) {
  const auto pacing = Pacing::of(kBareMetal, false);
  const Pacing constants;
  EXPECT_FALSE(pacing.adapts);
  EXPECT_EQ(pacing.pollsBeforeYield, constants.pollsBeforeYield);
  EXPECT_EQ(pacing.pollsPerYield, constants.pollsPerYield);
  EXPECT_EQ(pacing.spin, constants.spin);
  EXPECT_EQ(pacing.servingSpin, constants.servingSpin);
  EXPECT_EQ(pacing.tick, constants.tick);
}

TEST(Pacing, FollowsTheCostOfASystemCallWithinBounds) {
  const auto pacing = Pacing::of(kUserModeKernel, false);
  EXPECT_TRUE(pacing.adapts);
  EXPECT_EQ(pacing.pollsPerYield, 250);
  EXPECT_EQ(pacing.pollsBeforeYield, 250);
  EXPECT_EQ(pacing.spin, microseconds(2500));
  EXPECT_EQ(pacing.servingSpin, microseconds(1000));
  EXPECT_EQ(pacing.tick, microseconds(12'500));
  EXPECT_EQ(Pacing::of(microseconds(100), false).tick, milliseconds(25));
}

TEST(Pacing, OneCpuYieldsAtOnceUnlessYieldsAreDear) {
  EXPECT_EQ(Pacing::of(kBareMetal, true).pollsBeforeYield, 1);
  EXPECT_EQ(Pacing::of(kUserModeKernel, true).pollsBeforeYield, 250);
  std::thread pinned([] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    const auto pacing = Pacing::ofMachine();
    EXPECT_EQ(pacing.pollsBeforeYield, pacing.pollsPerYield);
  });
  pinned.join();
}

TEST(AdvertiseThrottle, AdvertisesEveryReceiveOnBareMetal) {
  AdvertiseThrottle throttle(Pacing::of(kBareMetal, false).adapts);
  for (int i = 0; i < 100; ++i) {
    EXPECT_TRUE(throttle.due());
    throttle.note(false);
  }
}

TEST(AdvertiseThrottle, AdvertisesRarelyWhileUselessAndMoreOnceUsed) {
  AdvertiseThrottle throttle(Pacing::of(kUserModeKernel, false).adapts);
  const auto dueOf = [&](int receives) {
    int due = 0;
    for (int i = 0; i < receives; ++i) {
      due += throttle.due() ? 1 : 0;
    }
    return due;
  };
  EXPECT_EQ(dueOf(16), 16);
  for (int i = 0; i < 100; ++i) {
    throttle.note(false);
  }
  EXPECT_EQ(dueOf(160), 10);
  for (int i = 0; i < 4; ++i) {
    throttle.note(true);
  }
  EXPECT_EQ(dueOf(16), 16);
}

Pacing adapting(int before, int between) {
  Pacing pacing;
  pacing.adapts = true;
  pacing.pollsBeforeYield = before;
  pacing.pollsPerYield = between;
  return pacing;
}

TEST(YieldBackoff, NeverAdaptsOnBareMetal) {
  YieldBackoff pace(Pacing::of(kBareMetal, false), microseconds(0));
  int64_t displaced = -1;
  for (int i = 0; i < 100; ++i) {
    pace.yield(displaced);
  }
  EXPECT_EQ(pace.between(), 1);
  EXPECT_EQ(displaced, -1);
}

TEST(YieldBackoff, YieldsOfNoUseAreMadeRarer) {
  YieldBackoff pace(adapting(20, 10), microseconds(0));
  EXPECT_EQ(pace.before(), 20);
  pace.note(false);
  EXPECT_EQ(pace.before(), 40);
  EXPECT_EQ(pace.between(), 20);
  for (int i = 0; i < 100; ++i) {
    pace.note(false);
  }
  EXPECT_EQ(pace.between(), 80);
  pace.note(true);
  EXPECT_EQ(pace.between(), 10);
}

// Two threads on a core: a yield lets the second thread run, however briefly;
// with a core alone, yields are useless, however long.
TEST(YieldBackoff, YieldsToAProgramThatComputesEndForAWhile) {
  const auto machine = Pacing::of(kBareMetal, false);
  YieldBackoff pace(machine, machine.spin);
  const auto now = Clock::now();
  pace.noteTime(machine.spin, now); // other threads of the job
  EXPECT_FALSE(pace.crowded(now));
  pace.noteTime(milliseconds(8), now);
  EXPECT_TRUE(pace.crowded(now));
  EXPECT_FALSE(pace.crowded(now + std::chrono::seconds(1)));
}

TEST(YieldBackoff, UserWhoAsksForLongPollingIsNeverMadeToSleep) {
  const auto machine = Pacing::of(kBareMetal, false);
  YieldBackoff pace(machine, std::chrono::seconds(1));
  const auto now = Clock::now();
  pace.noteTime(milliseconds(8), now);
  EXPECT_FALSE(pace.crowded(now));
}

TEST(YieldBackoff, AYieldIsOfUseWhereAnotherThreadRuns) {
  std::thread pinned([] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    YieldBackoff pace(adapting(20, 10), microseconds(0));
    std::atomic<bool> over{false};
    std::thread other([&] {
      while (!over.load()) {
        sched_yield();
      }
    });
    bool used = false;
    int64_t displaced = -1;
    for (int i = 0; i < 10'000 && !used; ++i) {
      pace.note(false);
      pace.yield(displaced);
      used = pace.between() == 10;
    }
    over = true;
    other.join();
    EXPECT_TRUE(used);
  });
  pinned.join();
}

} // namespace
} // namespace dlslime
