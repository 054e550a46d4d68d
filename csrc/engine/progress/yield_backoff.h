#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "engine/progress/pacing.h"

namespace dlslime {

// Number of polls that a waiting thread makes between yields. Where yields are
// dear and no other thread makes use of them, yields only delay the awaited
// event (a ping-pong under a user-mode kernel took 310 us with all yields, 250
// us with few). Then yields become ever rarer, until a yield is of use again.
// Any thread may call.
class YieldBackoff {
 public:
  // `spin` is the polling time in use; if longer than the machine's, the user
  // has asked for polling, and no thread sleeps instead.
  YieldBackoff(const Pacing& pacing, microseconds spin)
      : adapts_(pacing.adapts),
        mostTime_(
            spin <= pacing.spin ? kLongYields * pacing.spin
                                : nanoseconds::max()),
        before_(pacing.pollsBeforeYield),
        between_(pacing.pollsPerYield) {}

  // Polls before the first yield since the last news.
  int before() const {
    return before_ * rarity_.load(std::memory_order_relaxed);
  }
  // Polls before each further yield.
  int between() const {
    return between_ * rarity_.load(std::memory_order_relaxed);
  }
  // Yields the processor and, where yields are dear, notes whether the yield
  // was of use. `displaced` carries timesDisplaced() of the thread from yield
  // to yield of a wait, -1 before the first yield, to spare a second system
  // call per yield.
  void yield(int64_t& displaced);
  // Returns whether a waiting thread should sleep at once. A thread that yields
  // to a program that computes waits for the end of its time slice, some
  // milliseconds; a thread that sleeps gets the processor as soon as it is
  // woken.
  bool crowded(TimePoint now) const {
    return now.time_since_epoch().count() <
        crowdedUntil_.load(std::memory_order_relaxed);
  }
  // Notes the time that the last two yields took.
  void noteTime(nanoseconds taken, TimePoint now) {
    if (taken > mostTime_) {
      crowdedUntil_.store(
          (now + kCrowdedTime).time_since_epoch().count(),
          std::memory_order_relaxed);
    }
  }
  // Notes whether the last yield let a different thread run.
  void note(bool used) {
    const int rarity = rarity_.load(std::memory_order_relaxed);
    rarity_.store(
        used ? 1 : std::min(rarity * 2, kMostRarity),
        std::memory_order_relaxed);
  }

 private:
  // Largest rarity: a kernel thread holding the awaited packets gets the
  // processor only by a yield or at the kernel's next tick. A ping-pong of 64
  // KiB took 500 us with a bound of 64, takes 340 us with 4 to 16, and took 400
  // us without a bound; a ping-pong of 8 bytes takes 90 us with any bound.
  static constexpr int kMostRarity = 8;

  // Two yields that take so many polling times have met such a program.
  static constexpr int kLongYields = 8;
  static constexpr milliseconds kCrowdedTime{300};

  const bool adapts_;
  const nanoseconds mostTime_;
  const int before_, between_;
  std::atomic<int> rarity_{1};
  std::atomic<Clock::rep> crowdedUntil_{0};
};

} // namespace dlslime
