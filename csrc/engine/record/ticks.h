#pragma once

#include <cstdint>

#include "base/library/api.h"

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace dlslime {

// Clock for times that every message takes: where the processors have a counter
// that runs evenly, reading it took 20 ns, and Clock::now() 36 ns.
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
