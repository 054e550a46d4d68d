#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "faults/cycle.h"

namespace dlslime::testing {

// What a process that ran one cycle tells the one that has started it.
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

// What may be left of a cycle in which nothing fails: made once in a process.
struct Allowance {
  int descriptors = 0, threads = 0;
};

struct CaseResult {
  Fault fault;
  bool well = false;
  bool hung = false;
  int status = 0; // as of waitpid()
  CaseReport report{};
  std::string output; // standard error of the process
  // An operation has ended only because its caller did not wait any longer.
  bool slow() const;
  // "Shm, mmap, n = 3, error 12: hangs", or "well".
  std::string title(const FaultWay& way) const;
  // All of it, for people.
  std::string describe(const FaultWay& way) const;
};

// Functions in which the first call was made that failed, innermost first, one
// a line.
std::string siteOf(const CallRecord& record);

// The same without a fault.
CaseResult runClean(const FaultWay& way);
// A process for each, several at a time. Tells each result.
void runCases(
    const FaultWay& way,
    const std::vector<Fault>& faults,
    Allowance allowance,
    int atATime,
    const std::function<void(const CaseResult&)>& tell);

} // namespace dlslime::testing
