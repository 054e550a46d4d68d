#include "engine/progress/pacing.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

namespace dlslime {

namespace {

constexpr int kTries = 8;
constexpr nanoseconds kMostCost{100'000};
// Time of a look at all connections when nothing has come.
constexpr nanoseconds kPoll{100};
constexpr nanoseconds kDear{2000};
// A yield returns at once on a rank's own core, and lets the peer run where
// ranks share a core.
constexpr int kPollsOnSeveralCpus = 16;
// Sleeping, being woken and looking again costs about 20 system calls. A spin
// of a few times as long bounds the loss from a wrong choice between spinning
// and sleeping.
constexpr int kCostsPerSpin = 100;
constexpr microseconds kLeastSpin{50};
// Waking up to look and going back to sleep costs about 10 system calls
// (measured under a user-mode kernel: 250 us, at 24 us per call), so the tick
// takes a fiftieth of the time. Twice as much was a measurable loss for a
// ping-pong of 64 KiB.
constexpr int kCostsPerTick = 500;
constexpr microseconds kLeastTick{1000}, kMostTick{25000};

nanoseconds measure() {
  auto least = nanoseconds::max();
  for (int i = 0; i < kTries; ++i) {
    // Not a yield, because a yield takes as long as neighbouring processes run.
    const auto start = Clock::now();
    syscall(SYS_getppid);
    least = std::min(
        least, std::chrono::duration_cast<nanoseconds>(Clock::now() - start));
  }
  return std::min(least, kMostCost);
}

bool oneCpu() {
  cpu_set_t allowed;
  return sched_getaffinity(0, sizeof(allowed), &allowed) == 0 &&
      CPU_COUNT(&allowed) == 1;
}

} // namespace

nanoseconds syscallCost() {
  static const auto cost = measure();
  return cost;
}

int64_t timesDisplaced() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  return int64_t{usage.ru_nvcsw} + usage.ru_nivcsw;
}

Pacing Pacing::of(nanoseconds syscallCost, bool oneCpu) {
  using std::chrono::duration_cast;
  Pacing pacing;
  pacing.adapts = syscallCost >= kDear;
  pacing.pollsPerYield =
      pacing.adapts ? static_cast<int>(syscallCost / kPoll) : 1;
  pacing.pollsBeforeYield =
      std::max(oneCpu ? 1 : kPollsOnSeveralCpus, pacing.pollsPerYield);
  pacing.spin = std::max(
      duration_cast<microseconds>(kCostsPerSpin * syscallCost), kLeastSpin);
  pacing.servingSpin = pacing.spin * 2 / 5;
  pacing.tick = std::clamp(
      duration_cast<microseconds>(kCostsPerTick * syscallCost),
      kLeastTick,
      kMostTick);
  return pacing;
}

Pacing Pacing::ofMachine() {
  return of(syscallCost(), oneCpu());
}

} // namespace dlslime
