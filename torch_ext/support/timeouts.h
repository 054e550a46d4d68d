#pragma once

#include <c10/util/Exception.h>

#include <chrono>
#include <optional>

#include "base/clock.h"

namespace dlslime {

// What lies beyond is a mistake, and would overflow what it is added to.
constexpr milliseconds kLongestTimeout = std::chrono::hours(24 * 36525);

inline bool isTimeout(milliseconds timeout) {
  return timeout > milliseconds(0) && timeout <= kLongestTimeout;
}

// Throws ValueError unless it is at least a millisecond and at most a hundred
// years. `what`: "the group's".
inline milliseconds checkedTimeout(const char* what, milliseconds timeout) {
  TORCH_CHECK_VALUE(
      isTimeout(timeout),
      "dlslime: ",
      what,
      " time-out of ",
      timeout.count(),
      " ms: it must be at least 1 ms, and at most 100 years");
  return timeout;
}

// The same, of seconds; of none at all, if that is allowed.
inline milliseconds
checkedSeconds(const char* what, double seconds, bool noneAllowed) {
  constexpr double kMost =
      std::chrono::duration<double>(kLongestTimeout).count();
  const bool valid =
      noneAllowed ? seconds >= 0 : seconds >= 0.001; // not a number is neither
  TORCH_CHECK_VALUE(
      valid && seconds <= kMost,
      "dlslime: ",
      what,
      " time-out of ",
      seconds,
      " s: it must be at least ",
      noneAllowed ? "0" : "0.001",
      " s, and at most 100 years");
  return milliseconds(static_cast<int64_t>(seconds * 1000));
}

} // namespace dlslime
