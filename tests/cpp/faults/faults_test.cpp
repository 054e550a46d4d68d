// Makes calls fail, once or lastingly: all operations of a cycle must still
// end, well or with a typed error, and leave nothing.
//
// DLSLIME_FAULTS=all tries each call with each error, else a selection.
// DLSLIME_FAULTS_REPORT names a file for a paragraph per case.
// DLSLIME_FAULTS_ONLY names the only kind of calls to try ("mmap"), and perhaps
// the only number of a call ("mmap:3"). DLSLIME_FAULTS_AT_A_TIME is the number
// of parallel processes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iostream>

#include "faults/case_runner.h"

namespace dlslime::testing {
namespace {

constexpr uint64_t kLasting = uint64_t{1} << 62;

// Calls selected of each kind.
constexpr uint64_t kSelected = 3;
// Allocations selected, out of a thousand.
constexpr uint64_t kSelectedAllocations = 15;
// Parallel cases: a case mostly waits.
constexpr int kAtATime = 3;
// Tries for a cycle without faults, which a busy machine may upset.
constexpr int kCleanTries = 3;

const FaultWay kWays[] = {
    {"Shm"},
    {"ShmStreamed", RoutePolicy::kAuto, false, false, false},
    {"Tcp", RoutePolicy::kTcp},
    {"Gloo", RoutePolicy::kGloo},
    {"Rdma", RoutePolicy::kAuto, true},
    {"GpuShm", RoutePolicy::kAuto, false, true},
    {"GpuRdma", RoutePolicy::kAuto, true, true}};

std::string setting(const char* name) {
  const char* const text = std::getenv(name);
  return text != nullptr ? text : "";
}

bool all() {
  return setting("DLSLIME_FAULTS") == "all";
}

int atATime() {
  const auto text = setting("DLSLIME_FAULTS_AT_A_TIME");
  return text.empty() ? kAtATime : std::stoi(text);
}

bool wanted(const CallKind& kind) {
  const auto only = setting("DLSLIME_FAULTS_ONLY");
  return only.empty() || only.substr(0, only.find(':')) == kind.name;
}

bool wanted(uint64_t n) {
  const auto only = setting("DLSLIME_FAULTS_ONLY");
  const auto colon = only.find(':');
  return colon == std::string::npos || std::stoull(only.substr(colon + 1)) == n;
}

bool allocates(Call call) {
  return call == Call::kCallerAllocation || call == Call::kEngineAllocation;
}

class Faults : public ::testing::TestWithParam<FaultWay> {
 protected:
  Faults() {
    const auto path = setting("DLSLIME_FAULTS_REPORT");
    if (!path.empty()) {
      file_.open(path, std::ios::app);
    }
  }
  void run(Call first, Call last) {
    const auto clean = runWithoutFaults();
    std::vector<Fault> faults;
    for (const auto& kind : callKinds()) {
      const auto calls = clean.report.calls.counts[static_cast<int>(kind.call)];
      if (kind.call >= first && kind.call <= last && calls > 0 &&
          wanted(kind)) {
        std::cout << kind.name << ": " << calls << " calls\n";
        addEach(kind, calls, faults);
        addLasting(kind, calls, faults);
        std::erase_if(
            faults, [](const Fault& fault) { return !wanted(fault.n); });
      }
    }
    std::cout << "route " << clean.report.route << ", " << faults.size()
              << " cases" << std::endl;
    // A thread or descriptor of the process's start may end during the clean
    // cycle; the negative count must not limit later cycles.
    runCases(
        GetParam(),
        faults,
        {std::max(0, clean.report.descriptors),
         std::max(0, clean.report.threads)},
        atATime(),
        [&](const CaseResult& result) { judge(result); });
    std::cout << slow_ << " ended by their callers' time-outs" << std::endl;
  }

 private:
  CaseResult runWithoutFaults() {
    for (int i = 1;; ++i) {
      auto clean = runClean(GetParam());
      const bool well = clean.report.finished && !clean.report.leaks &&
          clean.report.story[0] == '\0' && clean.report.complaints[0] == '\0';
      if (well || i == kCleanTries) {
        EXPECT_TRUE(well) << clean.describe(GetParam());
        return clean;
      }
    }
  }
  // Begins at a different call for each way.
  static uint64_t firstOf(uint64_t step) {
    uint64_t way = 0;
    while (std::string(kWays[way].name) != GetParam().name) {
      ++way;
    }
    return 1 + way * 7 % step;
  }
  static void
  addEach(const CallKind& kind, uint64_t calls, std::vector<Fault>& faults) {
    const auto most = allocates(kind.call) ? kSelectedAllocations : kSelected;
    const uint64_t step = all() ? 1 : 1 + (calls - 1) / most;
    for (uint64_t n = firstOf(step); n <= calls; n += step) {
      for (size_t i = 0; i < kind.errors.size(); ++i) {
        if (all() || i == n % kind.errors.size()) {
          faults.push_back({kind.call, n, 1, kind.errors[i]});
        }
      }
    }
  }
  static void
  addLasting(const CallKind& kind, uint64_t calls, std::vector<Fault>& faults) {
    if (kind.lasting) {
      const uint64_t step = all() ? 1 : calls;
      for (uint64_t n = firstOf(step); n <= calls; n += step) {
        faults.push_back({kind.call, n, kLasting, kind.errors.front()});
      }
    }
  }
  void judge(const CaseResult& result) {
    const auto& way = GetParam();
    slow_ += result.slow() ? 1 : 0;
    if (file_.is_open()) {
      file_ << (!result.well        ? "FAIL "
                    : result.slow() ? "SLOW "
                                    : "well ")
            << result.report.calls.failed << " " << result.report.seconds
            << " s "
            << (result.well && !result.slow()
                    ? result.title(way) + "\n" + result.report.story
                    : result.describe(way))
            << std::endl;
    }
    // A failed thread start or allocation must not cost an operation: a
    // different thread takes over.
    const bool mayBeSlow = result.fault.times > 1 ||
        (result.fault.call != Call::kThread && !allocates(result.fault.call));
    const bool inTime = mayBeSlow || !result.slow();
    EXPECT_TRUE(result.well && inTime) << result.describe(way);
  }

  std::ofstream file_;
  int slow_ = 0;
};

TEST_P(Faults, OfSystemCallsEndTyped) {
  run(Call::kSocket, Call::kThread);
}
TEST_P(Faults, OfAllocationsEndTyped) {
  run(Call::kCallerAllocation, Call::kEngineAllocation);
}
TEST_P(Faults, OfStoresAndDevicesEndTyped) {
  run(Call::kStore, Call::kCuda);
}

INSTANTIATE_TEST_SUITE_P(
    Ways,
    Faults,
    ::testing::ValuesIn(kWays),
    [](const auto& instance) { return std::string(instance.param.name); });

} // namespace
} // namespace dlslime::testing
