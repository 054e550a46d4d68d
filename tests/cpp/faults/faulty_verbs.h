#pragma once

#include "fakes/verbs/rdma_hosts.h"

namespace dlslime::testing {

// Two NICs on a fabric whose verbs fail as the plan of faults says. None of the
// calls that free something leaves it.
class FaultyFabric : public FakeFabric {
 public:
  FaultyFabric();
};

} // namespace dlslime::testing
