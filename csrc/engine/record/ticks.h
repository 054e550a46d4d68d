#pragma once

#include <cstdint>

#include "base/library/api.h"

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace dlslime {

// Clock for times that every message takes: reading it costs a third of a call
// of Clock::now(), where the processors have a counter that runs evenly.
class DLSLIME_API Ticks {
 public:
  static uint64_t now() noexcept {
#if defined(__x86_64__)
    if (kEven) {
      return __rdtsc();
    }
#endif
    return nanosecondsNow();
  }
  // Returns the length of a tick, measured since the start of the process; at
  // least 10 ms are measured, so the first call may wait so long.
  static double nanoseconds();

 private:
  static uint64_t nanosecondsNow() noexcept;
  static const bool kEven;
};

} // namespace dlslime
