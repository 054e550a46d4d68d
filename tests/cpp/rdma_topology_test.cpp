// Which NICs are near, on machines whose sysfs was recorded.
#include "rdma/topology.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "fakes/log_capture.h"
#include "fakes/rdma_hosts.h"
#include "fakes/recorded_machines.h"
#include "rdma/rdma_transport.h"

namespace dlslime::testing {
namespace {

namespace fs = std::filesystem;
using rdma::Distance;
using rdma::Topology;

// What the kernel would show of a recorded machine.
class Sysfs {
 public:
  explicit Sysfs(const char* machine) {
    std::string name = fs::temp_directory_path() / "sysfs.XXXXXX";
    root_ = mkdtemp(name.data());
    std::istringstream lines(machine);
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::string path, node, more;
      words >> path >> node >> more;
      if (path == "node") {
        put("devices/system/node/node" + node + "/cpulist", more);
      } else if (!path.empty()) {
        addDevice("devices/" + path, node, more);
      }
    }
  }
  ~Sysfs() {
    fs::remove_all(root_);
  }
  Sysfs(const Sysfs&) = delete;
  Sysfs& operator=(const Sysfs&) = delete;

  void put(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text << "\n";
  }
  const fs::path& root() const {
    return root_;
  }
  const std::vector<FakeDevice>& nics() const {
    return nics_;
  }

 private:
  void addDevice(
      const std::string& path,
      const std::string& node,
      const std::string& nic) {
    put(path + "/numa_node", node);
    link("bus/pci/devices/" + fs::path(path).filename().string(), path);
    if (!nic.empty()) {
      const auto own = path + "/infiniband/" + nic;
      fs::create_directories(root_ / own);
      link(own + "/device", path);
      link("class/infiniband/" + nic, own);
      FakeDevice device;
      device.name = nic;
      nics_.push_back(device);
    }
  }
  void link(const std::string& from, const std::string& to) {
    fs::create_directories((root_ / from).parent_path());
    fs::create_symlink(
        fs::relative(root_ / to, (root_ / from).parent_path()), root_ / from);
  }

  fs::path root_;
  std::vector<FakeDevice> nics_;
};

// The NICs that a transport would use, in their order.
std::string chosen(const Sysfs& sysfs, const std::string& gpu) {
  RdmaConfig config;
  config.sysfs = sysfs.root();
  config.near = gpu;
  rdma::RdmaTransport transport(config);
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
  // This process runs on node 1, or on all.
  sysfs.put("devices/system/node/node0/cpulist", "");
  sysfs.put("devices/system/node/node1/cpulist", "0-16383");
  EXPECT_EQ(chosen(sysfs, ""), "mlx5_3 mlx5_0 mlx5_1 mlx5_2");
  sysfs.put("devices/system/node/node0/cpulist", "0-16383");
  EXPECT_EQ(chosen(sysfs, ""), "mlx5_0 mlx5_1 mlx5_2 mlx5_3");
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
