#pragma once

#include <c10/util/Exception.h>

#include <chrono>
#include <optional>

#include "base/clock.h"

namespace dlslime {

// Longest accepted time-out. A longer time-out is a mistake, and would overflow
// when added to a time.
constexpr milliseconds kLongestTimeout = std::chrono::hours(24 * 36525);

inline bool isTimeout(milliseconds timeout) {
  return timeout > milliseconds(0) && timeout <= kLongestTimeout;
}

// Throws ValueError unless the time-out is between 1 ms and 100 years. `what`
// is, for example, "the group's".
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

// Converts seconds to a checked time-out. 0 is allowed if `noneAllowed`.
inline milliseconds
checkedSeconds(const char* what, double seconds, bool noneAllowed) {
  constexpr double kMost =
      std::chrono::duration<double>(kLongestTimeout).count();
  const bool valid =
      noneAllowed ? seconds >= 0 : seconds >= 0.001; // false for NaN
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
