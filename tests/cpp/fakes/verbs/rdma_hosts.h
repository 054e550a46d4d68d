#pragma once

#include <gtest/gtest.h>

#include <string>

#include "base/config.h"
#include "engine/peer/group.h"
#include "fakes/verbs/fake_verbs.h"

namespace dlslime::testing {

// Returns the NIC of a rank on a host of the rank's own.
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

// Makes messages fail when RDMA fails, instead of going over TCP.
inline void byRdmaAlone(GroupOptions& options) {
  options.fallback = FallbackPolicy::kForbid;
}

// A fabric that must be left clean: declare in a fixture before its users.
struct AuditedFabric : FakeFabric {
  using FakeFabric::FakeFabric;
  ~AuditedFabric() {
    EXPECT_TRUE(live().empty()) << "something was not freed";
    EXPECT_FALSE(overflowed()) << "a completion queue was too small";
    EXPECT_EQ(withoutReceives(), 0U) << "a message came before its receive";
  }
};

} // namespace dlslime::testing
