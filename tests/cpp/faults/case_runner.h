#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "faults/cycle.h"

namespace dlslime::testing {

// Report of a child that has run a cycle, for its parent.
struct CaseReport {
  CallRecord calls;
  bool finished;
  bool leaks;
  int descriptors, threads; // more than before
  double seconds;
  char route[16];
  char story[6000];
  char complaints[3000];
};

// Leftovers of a cycle without faults: made once per process.
struct Allowance {
  int descriptors = 0, threads = 0;
};

struct CaseResult {
  Fault fault;
  bool well = false;
  bool hung = false;
  int status = 0; // as of waitpid()
  CaseReport report{};
  std::string output; // standard error of the child
  // Returns whether an operation ended only by the caller's time-out.
  bool slow() const;
  // Returns "Shm, mmap, n = 3, error 12: hangs", or the title with "well".
  std::string title(const FaultWay& way) const;
  // Returns the whole result, for people.
  std::string describe(const FaultWay& way) const;
};

// Returns the functions around the first failed call, innermost first, one per
// line.
std::string siteOf(const CallRecord& record);

// Runs a cycle without a fault.
CaseResult runClean(const FaultWay& way);
// Runs each case in a child, several at a time, and tells each result.
void runCases(
    const FaultWay& way,
    const std::vector<Fault>& faults,
    Allowance allowance,
    int atATime,
    const std::function<void(const CaseResult&)>& tell);

} // namespace dlslime::testing
