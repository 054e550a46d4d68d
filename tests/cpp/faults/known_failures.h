#pragma once

#include <string>
#include <vector>

#include "faults/case_runner.h"

namespace dlslime::testing {

// A failure that is known and not mended yet: a case that fails counts as
// passed where all of this applies. To remove an entry is to require again what
// it excuses.
struct KnownFailure {
  Call call;
  const char* way; // part of its name; "": all
  const char* site; // part of the stack of the call that fails; "": all
  const char* outcome; // part of the case's description; "": all
  const char* reason;
};
const std::vector<KnownFailure>& knownFailures();

// Null: it is not known.
const KnownFailure* findKnown(const FaultWay& way, const CaseResult& result);

} // namespace dlslime::testing
