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
  explicit YieldBackoff(const Pacing& pacing)
      : adapts_(pacing.adapts),
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

  const bool adapts_;
  const int before_, between_;
  std::atomic<int> rarity_{1};
};

} // namespace dlslime
