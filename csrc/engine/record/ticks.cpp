#include "engine/record/ticks.h"

#include <thread>

#include "base/clock.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace dlslime {

namespace {

bool countsEvenly() noexcept {
#if defined(__x86_64__)
  constexpr unsigned int kPowerManagement = 0x80000007;
  constexpr unsigned int kInvariantCounter = 1U << 8;
  unsigned int a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(kPowerManagement, &a, &b, &c, &d) != 0 &&
      (d & kInvariantCounter) != 0;
#else
  return false;
#endif
}

// Both clocks at one moment.
struct Moment {
  uint64_t ticks = Ticks::now();
  TimePoint time = Clock::now();
};

const Moment& start() noexcept {
  static const Moment moment;
  return moment;
}

} // namespace

const bool Ticks::kEven = countsEvenly();

namespace {
// Measuring begins as the library is loaded.
[[maybe_unused]] const Moment& begun = start();
} // namespace

uint64_t Ticks::nanosecondsNow() noexcept {
  return static_cast<uint64_t>(nowSinceBoot());
}

double Ticks::nanoseconds() {
  if (!kEven) {
    return 1.0;
  }
  constexpr milliseconds kLeast{10};
  const auto& begin = start();
  std::this_thread::sleep_until(begin.time + kLeast);
  const Moment now;
  const auto passed =
      std::chrono::duration<double, std::nano>(now.time - begin.time);
  return passed.count() / static_cast<double>(now.ticks - begin.ticks);
}

} // namespace dlslime
