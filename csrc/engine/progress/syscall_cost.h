#pragma once

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

// Polls before a waiting thread's first yield, never fewer than
// pollsPerYield(): about a microsecond where the process has several CPUs. With
// a single CPU nothing can come during polls.
int pollsBeforeYield();
// Polls between two yields: a single poll where a yield costs about as much as
// a poll; where yields are dear, as many polls as take the time of a yield.
int pollsPerYield();
// Polling time of a waiting thread before sleep.
microseconds usualSpin();
// Polling time of the background thread after being woken.
microseconds servingSpin();
// Period of the background thread's looks while threads wait or post.
microseconds backgroundTick();

} // namespace dlslime
