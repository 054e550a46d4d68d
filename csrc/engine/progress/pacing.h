#pragma once

#include <algorithm>
#include <cstdint>

#include "base/clock.h"

namespace dlslime {

// Time of a system call plus a look at the clock on this machine: the least of
// some tries, measured at the first call. About 0.3 us on bare metal, a few us
// in a sandbox checking system calls, 20 to 90 us under a user-mode kernel; at
// most 100 us.
nanoseconds syscallCost();

// Number of context switches of the calling thread so far; 0 where the kernel
// does not tell.
int64_t timesDisplaced();

// How long threads poll, yield and sleep, by the cost of a system call. On bare
// metal all values are constants, and nothing adapts to what was of use.
struct Pacing {
  static Pacing of(nanoseconds syscallCost, bool oneCpu);
  // Returns the pacing of this machine, and of the CPUs that the calling thread
  // may use.
  static Pacing ofMachine();

  // True where system calls are dear: useless yields and advertisements then
  // become rarer.
  bool adapts = false;
  // Polls before a waiting thread's first yield, never fewer than
  // pollsPerYield: about a microsecond where the process has several CPUs. With
  // a single CPU nothing can come during polls.
  int pollsBeforeYield = 16;
  // Polls between two yields: a single poll where a yield costs about as much
  // as a poll; where yields are dear, as many polls as take the time of a
  // yield.
  int pollsPerYield = 1;
  // Polling time of a waiting thread before sleep.
  microseconds spin{50};
  // Polling time of the background thread after being woken.
  microseconds servingSpin{20};
  // Period of the background thread's looks while threads wait or post.
  microseconds tick{1000};
};

// Decides when to advertise a receive to a sender that can send eagerly, and so
// need not wait for an RTR. An RTR is wasted if it comes too late: in a
// ping-pong every second one is late. Where messages are dear, that costs more
// than the copies saved by the rest (under a user-mode kernel 311 us instead of
// 294 for 64 KiB), so RTRs become rarer while useless, and more frequent once
// used.
class AdvertiseThrottle {
 public:
  explicit AdvertiseThrottle(bool adapts) : adapts_(adapts) {}

  bool due() {
    since_ = (since_ + 1) % rarity_;
    return since_ == 0;
  }
  void note(bool used) {
    if (adapts_) {
      rarity_ = used ? std::max(rarity_ / 2, 1) : std::min(rarity_ * 2, kMost);
    }
  }

 private:
  static constexpr int kMost = 16;
  bool adapts_;
  int rarity_ = 1, since_ = 0;
};

} // namespace dlslime
