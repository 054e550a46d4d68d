#pragma once

#include <chrono>
#include <cstdint>

namespace dlslime {

using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

// Returns the time point meaning "never", an hour before the largest, so adding
// to it can't overflow.
inline TimePoint never() {
  return TimePoint::max() - std::chrono::hours(1);
}

// Returns nanoseconds since boot, by a clock common to all processes of the
// host.
inline int64_t nowSinceBoot() {
  return std::chrono::duration_cast<nanoseconds>(
             Clock::now().time_since_epoch())
      .count();
}

inline TimePoint timeAfter(TimePoint now, milliseconds timeout) {
  // Compares in milliseconds: a huge time-out has no value in nanoseconds.
  const auto most = std::chrono::duration_cast<milliseconds>(never() - now);
  return timeout >= most ? never() : now + timeout;
}

inline TimePoint deadlineAfter(milliseconds timeout) {
  return timeAfter(Clock::now(), timeout);
}

// End of a wait. A time-out starts at the first call of at(): most waits end
// earlier, without a look at the clock.
class Deadline {
 public:
  Deadline(TimePoint at) : at_(at) {}
  Deadline(milliseconds timeout) : timeout_(timeout) {}
  TimePoint at(TimePoint now) {
    if (at_ == TimePoint()) {
      at_ = timeAfter(now, timeout_);
    }
    return at_;
  }

 private:
  TimePoint at_{};
  milliseconds timeout_{};
};

// Returns the milliseconds until `when` for poll() and epoll_wait(), or -1 for
// never(). Rounds up, so a thread never wakes just before the deadline.
inline int pollTimeoutMs(TimePoint when) {
  if (when >= never()) {
    return -1;
  }
  const auto left = when - Clock::now();
  if (left <= Clock::duration::zero()) {
    return 0;
  }
  const auto ms = std::chrono::ceil<milliseconds>(left).count();
  return ms > 1'000'000 ? 1'000'000 : static_cast<int>(ms);
}

} // namespace dlslime
