#include "engine/progress/syscall_cost.h"

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

TEST(SyscallCost, WaitersSpinForFiftyMicrosecondsOrMoreButNotForEver) {
  EXPECT_GE(usualSpin(), microseconds(50));
  EXPECT_LE(usualSpin(), milliseconds(10));
  EXPECT_EQ(servingSpin(), usualSpin() * 2 / 5);
  EXPECT_GE(backgroundTick(), milliseconds(1));
  EXPECT_LE(backgroundTick(), milliseconds(25));
}

TEST(SyscallCost, OneCpuYieldsAtOnceUnlessYieldsAreDear) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  std::thread pinned([&] {
    cpu_set_t one;
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &before) != 0 && CPU_COUNT(&one) == 0) {
        CPU_SET(cpu, &one);
      }
    }
    ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    EXPECT_EQ(pollsBeforeYield(), pollsPerYield());
  });
  pinned.join();
  if (CPU_COUNT(&before) > 1) {
    EXPECT_GE(pollsBeforeYield(), 16);
  }
}

TEST(YieldBackoff, YieldsOfNoUseAreMadeRarer) {
  YieldBackoff pace(20, 10);
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
TEST(YieldBackoff, AYieldIsOfUseWhereAnotherThreadRuns) {
  std::thread pinned([] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    YieldBackoff pace(20, 10);
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
