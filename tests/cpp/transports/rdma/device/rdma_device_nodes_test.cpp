#include "transports/rdma/device/device_nodes.h"

#include <gtest/gtest.h>

#include "fakes/made_up_folder.h"

namespace dlslime::rdma {
namespace {

// No machine has so many devices: their nodes are missing everywhere.
constexpr const char* kFirst = "uverbs977";
constexpr const char* kSecond = "uverbs978";

class RdmaDeviceNodes : public ::testing::Test {
 protected:
  void show(const std::string& node, const std::string& device) {
    sysfs.put("class/infiniband_verbs/" + node + "/ibdev", device);
  }
  std::string text() const {
    return missingNodesText(sysfs.root());
  }

  testing::MadeUpFolder sysfs;
};

TEST_F(RdmaDeviceNodes, OfAKernelWithoutDevicesNoneIsMissing) {
  EXPECT_EQ(text(), "");
  sysfs.put("class/infiniband_verbs/abi_version", "6");
  EXPECT_EQ(text(), "");
}

TEST_F(RdmaDeviceNodes, MissingAreNamedWithTheirDevicesAndTheRemedy) {
  show(kSecond, "mlx5_1");
  show(kFirst, "mlx5_0");
  EXPECT_EQ(
      text(),
      "the kernel shows mlx5_0 but /dev/infiniband/uverbs977 can't be opened "
      "(errno 2 (No such file or directory)), mlx5_1 but "
      "/dev/infiniband/uverbs978 can't be opened (errno 2 (No such file or "
      "directory)); give the container the device: docker run "
      "--device=/dev/infiniband, in Kubernetes a resource of the RDMA device "
      "plugin");
}

} // namespace
} // namespace dlslime::rdma
