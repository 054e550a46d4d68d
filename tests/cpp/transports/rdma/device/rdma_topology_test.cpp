// Which NICs are near, on machines with recorded sysfs.
#include "transports/rdma/device/topology.h"

#include <gtest/gtest.h>

#include <sstream>

#include "fakes/log_capture.h"
#include "fakes/verbs/recorded_machines.h"
#include "fakes/verbs/sysfs.h"
#include "transports/rdma/rdma_transport.h"

namespace dlslime::testing {
namespace {

using rdma::Distance;
using rdma::Topology;

// Returns the NICs that a transport would use, in order.
std::string chosen(
    const Sysfs& sysfs,
    const std::string& near,
    const std::vector<std::string>& inUse = {}) {
  RdmaConfig config;
  config.sysfs = sysfs.root();
  config.near = near;
  rdma::RdmaTransport transport(config, [&] { return inUse; });
  std::istringstream parts(transport.describe());
  std::string names;
  for (std::string part; std::getline(parts, part, ';');) {
    const auto colon = part.find(':');
    if (colon != std::string::npos) {
      names += (names.empty() ? "" : " ") + part.substr(1, colon - 1);
    }
  }
  return names;
}

TEST(RdmaTopology, EveryGpuGetsTheNicsOnItsSwitch) {
  struct Case {
    const char *machine, *gpu, *nics;
  };
  for (const auto& [machine, gpu, nics] :
       {Case{kHgxH200, "0000:18:00.0", "mlx5_0"},
        Case{kHgxH200, "0000:2a:00.0", "mlx5_1"},
        Case{kHgxH200, "0000:3a:00.0", "mlx5_2"},
        Case{kSwitchedVm, "0000:68:00.0", "mlx5_0"},
        Case{kSwitchedVm, "0000:6b:00.0", "mlx5_1"},
        Case{kSwitchedVm, "0000:cc:00.0", "mlx5_2"},
        Case{kTwoLevels, "0000:37:00.0", "mlx5_0 mlx5_1"},
        Case{kTwoLevels, "0000:45:00.0", "mlx5_0 mlx5_1"},
        Case{kTwoLevels, "0000:bf:00.0", "mlx5_4 mlx5_5"},
        Case{kNdH100v5, "0001:00:00.0", "mlx5_0 mlx5_1"},
        Case{kNdH100v5, "0009:00:00.0", "mlx5_4 mlx5_5"},
        Case{kFlatVm, "0000:05:00.0", "mlx5_0 mlx5_1"}}) {
    const Sysfs sysfs(machine);
    const FakeFabric fabric(sysfs.nics());
    EXPECT_EQ(chosen(sysfs, gpu), nics) << gpu;
  }
}

TEST(RdmaTopology, NextNearestTakeTheirPlace) {
  const Sysfs sysfs(kHgxH200);
  FakeFabric fabric(sysfs.nics());
  fabric.setPort("mlx5_0", 0, IBV_PORT_DOWN);
  EXPECT_EQ(chosen(sysfs, "0000:18:00.0"), "mlx5_1 mlx5_2");
  fabric.setPort("mlx5_1", 0, IBV_PORT_DOWN);
  fabric.setPort("mlx5_2", 0, IBV_PORT_DOWN);
  EXPECT_EQ(chosen(sysfs, "0000:18:00.0"), "mlx5_3");
}

TEST(RdmaTopology, DistancesAreNamedAsElsewhere) {
  const Sysfs sysfs(kSwitchedVm);
  const Topology topology(sysfs.root());
  const auto gpu = topology.ofPciDevice("0000:68:00.0");
  const auto text = [&](const char* nic) {
    return std::string(
        distanceText(Topology::between(topology.ofRdmaDevice(nic), gpu)));
  };
  EXPECT_EQ(text("mlx5_0"), "PIX");
  EXPECT_EQ(text("mlx5_1"), "PHB");
  EXPECT_EQ(text("mlx5_2"), "SYS");
  EXPECT_EQ(text("rxe0"), "NODE") << "nothing is known of it";
  const Sysfs levels(kTwoLevels);
  const Topology other(levels.root());
  EXPECT_EQ(
      Topology::between(
          other.ofPciDevice("0000:37:00.0"), other.ofRdmaDevice("mlx5_0")),
      Distance::kSwitches);
}

TEST(RdmaTopology, NicsOfTheProcesssNodeComeFirst) {
  Sysfs sysfs(kHgxH200);
  const FakeFabric fabric(sysfs.nics());
  const Topology topology(sysfs.root());
  EXPECT_EQ(topology.nodesOf({3, 143}), (std::vector<int>{0, 1}));
  EXPECT_EQ(topology.nodesOf({24}), std::vector<int>{1});
  EXPECT_EQ(topology.nodesOf({95}), std::vector<int>{});
  // The test's process runs on node 1, or on all nodes.
  sysfs.put("devices/system/node/node0/cpulist", "");
  sysfs.put("devices/system/node/node1/cpulist", "0-16383");
  EXPECT_EQ(chosen(sysfs, ""), "mlx5_3 mlx5_0 mlx5_1 mlx5_2");
  sysfs.put("devices/system/node/node0/cpulist", "0-16383");
  EXPECT_EQ(chosen(sysfs, ""), "mlx5_0 mlx5_1 mlx5_2 mlx5_3");
}

TEST(RdmaTopology, TheOneGpuThatIsUsedIsMeant) {
  const Sysfs sysfs(kHgxH200);
  const FakeFabric fabric(sysfs.nics());
  EXPECT_EQ(chosen(sysfs, "", {"0000:2a:00.0"}), "mlx5_1");
  EXPECT_EQ(chosen(sysfs, "0000:18:00.0", {"0000:2a:00.0"}), "mlx5_0");
  const auto all = chosen(sysfs, "");
  EXPECT_EQ(chosen(sysfs, "", {"0000:18:00.0", "0000:2a:00.0"}), all);
  EXPECT_EQ(chosen(sysfs, "", {"0000:99:00.0"}), all) << "not in this sysfs";
}

TEST(RdmaTopology, AGpuThatIsUsedLaterIsMeantFromThenOn) {
  const Sysfs sysfs(kHgxH200);
  const FakeFabric fabric(sysfs.nics());
  RdmaConfig config;
  config.sysfs = sysfs.root();
  std::vector<std::string> inUse;
  rdma::RdmaTransport transport(config, [&] { return inUse; });
  EXPECT_NE(transport.describe().find("mlx5_3"), std::string::npos);
  inUse = {"0000:2a:00.0"};
  const auto near = transport.describe();
  EXPECT_NE(near.find("mlx5_1:1"), std::string::npos) << near;
  EXPECT_EQ(near.find("mlx5_3"), std::string::npos) << near;
}

TEST(RdmaTopology, AddressThatIsNoneIsSaid) {
  const Sysfs sysfs(kFlatVm);
  const FakeFabric fabric(sysfs.nics());
  LogCapture log;
  EXPECT_EQ(chosen(sysfs, "GPU-1"), "mlx5_0 mlx5_1");
  EXPECT_EQ(log.count("DLSLIME_NEAR=GPU-1 is not the address"), 1U);
}

TEST(RdmaTopology, ThisProcessMayRunSomewhere) {
  EXPECT_FALSE(rdma::allowedCpus().empty());
}

} // namespace
} // namespace dlslime::testing
