#pragma once

#include "fakes/verbs/rdma_hosts.h"

namespace dlslime::testing {

// Two NICs on a fabric whose verbs fail by the plan of faults. Calls that free
// something always free.
class FaultyFabric : public FakeFabric {
 public:
  FaultyFabric();
};

} // namespace dlslime::testing
