#pragma once

#include <chrono>
#include <cstdint>

namespace dlslime {

using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

// Far enough to mean "never", near enough that adding to it can't overflow.
inline TimePoint never() {
  return TimePoint::max() - std::chrono::hours(1);
}

// In ns: the same for all processes of a host since it was booted.
inline int64_t nowSinceBoot() {
  return std::chrono::duration_cast<nanoseconds>(
             Clock::now().time_since_epoch())
      .count();
}

inline TimePoint timeAfter(TimePoint now, milliseconds timeout) {
  // Compared in milliseconds: a huge time-out has no value in nanoseconds.
  const auto most = std::chrono::duration_cast<milliseconds>(never() - now);
  return timeout >= most ? never() : now + timeout;
}

inline TimePoint deadlineAfter(milliseconds timeout) {
  return timeAfter(Clock::now(), timeout);
}

// The end of a wait. A time-out starts when it is first asked: most waits are
// over before, and need no look at the clock.
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

// Whole milliseconds until `when` for poll() and epoll_wait(), rounded up so
// that a sleeper never wakes just before its deadline; -1 for "never".
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
