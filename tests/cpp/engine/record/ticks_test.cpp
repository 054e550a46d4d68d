#include "engine/record/ticks.h"

#include <gtest/gtest.h>

#include <thread>

#include "fakes/world.h"

namespace dlslime::testing {
namespace {

TEST(Ticks, NeverGoBack) {
  uint64_t last = Ticks::now();
  for (int i = 0; i < 100000; ++i) {
    const auto now = Ticks::now();
    ASSERT_GE(now, last);
    last = now;
  }
}

TEST(Ticks, GoOnFromThreadToThread) {
  uint64_t last = Ticks::now();
  for (int i = 0; i < 50; ++i) {
    uint64_t seen = 0;
    std::thread([&] { seen = Ticks::now(); }).join();
    EXPECT_GE(seen, last);
    last = Ticks::now();
    EXPECT_GE(last, seen);
  }
}

// Measures a pause by both clocks. A thread may lose its processor between two
// readings, so the clock is read around the ticks, too.
bool agreesOnAPause() {
  const auto outerBegin = Clock::now();
  const auto begin = Ticks::now();
  const auto innerBegin = Clock::now();
  std::this_thread::sleep_for(milliseconds(50));
  const auto innerEnd = Clock::now();
  const auto end = Ticks::now();
  const auto outerEnd = Clock::now();
  const auto passed = static_cast<double>(end - begin) * Ticks::nanoseconds();
  const std::chrono::duration<double, std::nano> least = innerEnd - innerBegin;
  const std::chrono::duration<double, std::nano> most = outerEnd - outerBegin;
  return passed > 0.95 * least.count() && passed < 1.05 * most.count();
}

// The length of a tick is the better known the longer the process runs.
TEST(Ticks, TimesAreThoseOfTheClock) {
  EXPECT_GT(Ticks::nanoseconds(), 0);
  EXPECT_TRUE(eventually(agreesOnAPause));
}

} // namespace
} // namespace dlslime::testing
