#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "engine/progress/syscall_cost.h"

namespace dlslime {

// How many polls a waiter makes between yields. Where yields are dear, and
// nobody else takes them up, they only delay what the waiter waits for (a
// ping-pong under a user-mode kernel took 310 us with all of them, 250 us with
// few): then ever fewer are made, until one is of use again. Any thread.
class YieldBackoff {
 public:
  YieldBackoff(int before, int between) : before_(before), between_(between) {}
  YieldBackoff() : YieldBackoff(pollsBeforeYield(), pollsPerYield()) {}

  // Before the first one since there was news,
  int before() const {
    return before_ * rarity_.load(std::memory_order_relaxed);
  }
  // and before the next ones.
  int between() const {
    return between_ * rarity_.load(std::memory_order_relaxed);
  }
  // `displaced` is of the thread, for the yields of one wait: -1 before the
  // first one. It saves asking the kernel twice for each.
  void yield(int64_t& displaced);
  // Whether somebody else has run because of one.
  void note(bool used) {
    const int rarity = rarity_.load(std::memory_order_relaxed);
    rarity_.store(
        used ? 1 : std::min(rarity * 2, kMostRarity),
        std::memory_order_relaxed);
  }

 private:
  // Who needs the processor may be a thread of the kernel's that has the
  // packets we wait for: it gets it by a yield, or by the kernel's next tick.
  // With 64 a ping-pong of 64 KiB took 500 us, with 4 to 16 it takes 340, and
  // without a bound 400; one of 8 bytes takes 90 with any.
  static constexpr int kMostRarity = 8;

  const int before_, between_;
  std::atomic<int> rarity_{1};
};

} // namespace dlslime
