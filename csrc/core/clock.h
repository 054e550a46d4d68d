#pragma once

#include <chrono>

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

inline TimePoint deadlineAfter(milliseconds timeout) {
  const auto now = Clock::now();
  // Compared in milliseconds: a huge time-out has no value in nanoseconds.
  const auto most = std::chrono::duration_cast<milliseconds>(never() - now);
  return timeout >= most ? never() : now + timeout;
}

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
