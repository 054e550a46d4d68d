#pragma once

#include <algorithm>
#include <atomic>

#include "engine/system_cost.h"

namespace dlslime {

// How many polls a waiter makes between yields. Where yields are dear, and
// nobody else takes them up, they only delay what the waiter waits for (a
// ping-pong under a user-mode kernel took 310 us with all of them, 250 us with
// few): then ever fewer are made, until one is of use again. Any thread.
class YieldPace {
 public:
  YieldPace(int before, int between, nanoseconds cost)
      : before_(before), between_(between), cost_(cost) {}
  YieldPace() : YieldPace(pollsBeforeYield(), pollsPerYield(), systemCost()) {}

  // Before the first one since there was news,
  int before() const {
    return before_ * rarity_.load(std::memory_order_relaxed);
  }
  // and before the next ones.
  int between() const {
    return between_ * rarity_.load(std::memory_order_relaxed);
  }
  // It is worth a look at the clock to know whether a yield was of use.
  bool dear() const {
    return between_ > 1;
  }
  void note(nanoseconds took) {
    const bool used = took > kUnusedCosts * cost_;
    const int rarity = rarity_.load(std::memory_order_relaxed);
    rarity_.store(
        used ? 1 : std::min(rarity * 2, kMostRarity),
        std::memory_order_relaxed);
  }

 private:
  // A yield that nobody takes up, and the look at the clock after it.
  static constexpr int kUnusedCosts = 3;
  // A waiter still yields before it sleeps, see usualSpin().
  static constexpr int kMostRarity = 16;

  const int before_, between_;
  const nanoseconds cost_;
  std::atomic<int> rarity_{1};
};

} // namespace dlslime
