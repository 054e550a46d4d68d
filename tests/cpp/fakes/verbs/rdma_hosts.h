#pragma once

#include <gtest/gtest.h>

#include <string>

#include "base/config.h"
#include "engine/peer/group.h"
#include "fakes/verbs/fake_verbs.h"

namespace dlslime::testing {

// The NIC of a rank that is on a host of its own.
inline FakeDevice nicOf(int rank) {
  FakeDevice device;
  device.name = "nic" + std::to_string(rank);
  return device;
}
inline Config rdmaHost(int rank) {
  Config config;
  config.hostId = "host " + std::to_string(rank);
  config.interfaces = "=lo";
  config.rdma.nics = nicOf(rank).name;
  return config;
}

// Of groups whose messages are to fail where RDMA does, and not to go by TCP.
inline void byRdmaAlone(GroupOptions& options) {
  options.fallback = FallbackPolicy::kForbid;
}

// A fabric that must be left clean: a fixture's member before all that uses it.
struct AuditedFabric : FakeFabric {
  using FakeFabric::FakeFabric;
  ~AuditedFabric() {
    EXPECT_TRUE(live().empty()) << "something was not freed";
    EXPECT_FALSE(overflowed()) << "a completion queue was too small";
    EXPECT_EQ(withoutReceives(), 0U) << "a message came before its receive";
  }
};

} // namespace dlslime::testing
