#pragma once

#include <ostream>

#include "fakes/peers/faulty_connection.h"

namespace dlslime::testing {

// Faults of a wire, for tests of the protocol.
struct Setting {
  const char* name;
  Faults faults;
};
inline void PrintTo(const Setting& setting, std::ostream* out) {
  *out << setting.name;
}

inline Faults
faultsOf(int delay, bool reorder, int refuse, bool duplicate, bool framed) {
  Faults faults;
  faults.maxDelayPolls = delay;
  faults.reorder = reorder;
  faults.refusePercent = refuse;
  faults.duplicate = duplicate;
  faults.framed = framed;
  return faults;
}

inline Faults pushing(Faults faults) {
  faults.pushes = true;
  return faults;
}

inline Faults replaceable(Faults faults) {
  faults.replaceable = true;
  return faults;
}

inline const Setting kSettings[] = {
    {"Perfect", faultsOf(0, false, 0, false, false)},
    {"Framed", faultsOf(0, false, 0, false, true)},
    {"Delayed", faultsOf(5, false, 0, false, false)},
    {"Reordered", faultsOf(7, true, 0, false, false)},
    {"Refusing", faultsOf(0, false, 60, false, false)},
    {"RefusingFramed", faultsOf(0, false, 60, false, true)},
    {"Repeated", faultsOf(0, false, 0, true, false)},
    {"Everything", faultsOf(6, true, 30, true, false)},
    {"EverythingFramed", faultsOf(6, true, 30, true, true)},
    {"Pushing", pushing(faultsOf(0, false, 0, false, false))},
    {"PushingDelayed", pushing(faultsOf(5, false, 0, false, false))},
    {"PushingReordered", pushing(faultsOf(7, true, 0, false, true))},
    {"PushingRefused", pushing(faultsOf(3, false, 40, false, false))},
    {"PushingEverything", pushing(faultsOf(6, true, 30, true, false))},
    {"Replaced", replaceable(faultsOf(0, false, 0, false, false))},
    {"ReplacedDelayed", replaceable(faultsOf(5, false, 0, false, false))},
    {"ReplacedFramed", replaceable(faultsOf(5, false, 20, false, true))},
    {"ReplacedEverything", replaceable(faultsOf(6, true, 30, true, false))},
    {"ReplacedPushing",
     replaceable(pushing(faultsOf(5, false, 0, false, false)))},
    {"ReplacedPushingEverything",
     replaceable(pushing(faultsOf(6, true, 30, true, false)))},
};

} // namespace dlslime::testing
