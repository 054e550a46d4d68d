#pragma once

#include <cstdint>

#include "base/clock.h"

namespace dlslime {

// What a system call and a look at the clock take together on this machine,
// the least of some tries, measured at the first call: 0.3 us on bare metal, a
// few in a sandbox that checks system calls, 20 to 90 us under a user-mode
// kernel; at most 100 us.
nanoseconds syscallCost();

// How often this thread has left its processor to another one; 0 where the
// kernel does not tell.
int64_t timesDisplaced();

// Polls before a waiter's first yield: about a microsecond where this process
// has several CPUs; with one nothing can come while we poll.
int pollsBeforeYield();
// And between two yields: one, for they cost about as much as a poll; where
// they are dear, as many as take that time.
int pollsPerYield();
// How long a waiter polls before it sleeps.
microseconds usualSpin();
// How long the background thread goes on polling after it was woken.
microseconds servingSpin();
// How often the background thread looks beside threads that wait or post.
microseconds backgroundTick();

} // namespace dlslime
