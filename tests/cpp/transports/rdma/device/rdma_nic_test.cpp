// Which ports are used, and with which addresses.
#include "transports/rdma/device/nic.h"

#include <gtest/gtest.h>

#include "fakes/made_up_folder.h"
#include "fakes/status_of.h"
#include "fakes/verbs/fake_verbs.h"
#include "transports/rdma/rdma_transport.h"

namespace dlslime::rdma {
namespace {

using ::dlslime::testing::FakeDevice;
using ::dlslime::testing::FakeFabric;
using ::dlslime::testing::FakeGid;
using ::dlslime::testing::FakePort;
using ::dlslime::testing::ipv4Gid;

ibv_gid ipv6Gid(uint8_t first, uint8_t second, uint8_t last) {
  ibv_gid gid{};
  gid.raw[0] = first;
  gid.raw[1] = second;
  gid.raw[15] = last;
  return gid;
}

std::vector<Gid> tableOf(std::vector<std::pair<GidKind, ibv_gid>> entries) {
  std::vector<Gid> table;
  for (const auto& [kind, value] : entries) {
    table.push_back({static_cast<uint32_t>(table.size()), kind, value});
  }
  return table;
}

TEST(RdmaGid, Ipv4MappedRoceV2GoesFirstAndLinkLocalLast) {
  const auto linkLocal = ipv6Gid(0xfe, 0x80, 1);
  const auto global = ipv6Gid(0x20, 0x01, 1);
  const auto mapped = ipv4Gid(10, 0, 0, 1);
  EXPECT_EQ(
      chooseGid(
          tableOf(
              {{GidKind::kRoceV1, mapped},
               {GidKind::kRoceV2, linkLocal},
               {GidKind::kRoceV2, global},
               {GidKind::kRoceV2, mapped}}),
          true,
          -1)
          ->index,
      3U);
  EXPECT_EQ(
      chooseGid(
          tableOf({{GidKind::kRoceV2, linkLocal}, {GidKind::kRoceV2, global}}),
          true,
          -1)
          ->index,
      1U);
  EXPECT_EQ(
      chooseGid(tableOf({{GidKind::kRoceV2, linkLocal}}), true, -1)->index, 0U);
}

TEST(RdmaGid, FirstOfEqualsIsTakenAndEmptyEntriesNever) {
  const auto table = tableOf(
      {{GidKind::kRoceV2, ibv_gid{}},
       {GidKind::kRoceV2, ipv4Gid(10, 0, 0, 1)},
       {GidKind::kRoceV2, ipv4Gid(10, 0, 0, 2)}});
  EXPECT_EQ(chooseGid(table, true, -1)->index, 1U);
  EXPECT_EQ(chooseGid(table, true, 2)->index, 2U);
  EXPECT_FALSE(chooseGid(table, true, 0)) << "it is empty";
  EXPECT_FALSE(chooseGid(table, true, 9));
}

TEST(RdmaGid, RoceV1AloneIsNotUsed) {
  const auto table = tableOf({{GidKind::kRoceV1, ipv4Gid(10, 0, 0, 1)}});
  EXPECT_FALSE(chooseGid(table, true, -1));
  EXPECT_TRUE(chooseGid(table, true, 0)) << "unless it is asked for";
}

TEST(RdmaGid, InfiniBandTakesItsOwnKind) {
  const auto table = tableOf(
      {{GidKind::kInfiniBand, ipv6Gid(0xfe, 0x80, 7)},
       {GidKind::kRoceV2, ipv4Gid(10, 0, 0, 1)}});
  EXPECT_EQ(chooseGid(table, false, -1)->index, 0U);
}

TEST(RdmaGid, TextsAreThoseOfTheAddresses) {
  EXPECT_EQ(gidText(ipv4Gid(10, 9, 0, 1)), "10.9.0.1");
  EXPECT_EQ(gidText(ipv6Gid(0xfe, 0x80, 1)), "fe80::1");
}

TEST(RdmaGid, TableIsListedWithIndicesAndKinds) {
  auto table = tableOf(
      {{GidKind::kRoceV1, ipv4Gid(10, 9, 0, 1)},
       {GidKind::kRoceV2, ibv_gid{}},
       {GidKind::kRoceV2, ipv6Gid(0xfe, 0x80, 1)},
       {GidKind::kInfiniBand, ipv6Gid(0xfe, 0x80, 2)}});
  EXPECT_EQ(
      gidTableText(table),
      "0: 10.9.0.1 (RoCE v1), 2: fe80::1 (RoCE v2), 3: fe80::2 (InfiniBand)");
  EXPECT_EQ(gidTableText({}), "none");
  EXPECT_EQ(gidTableText(tableOf({{GidKind::kRoceV2, {}}})), "none");
}

TEST(RdmaGid, LongTableIsCutWithoutItsEmptyEntries) {
  std::vector<Gid> table;
  for (uint8_t i = 0; i < 12; ++i) {
    const bool empty = i % 4 == 1; // three of them
    table.push_back(
        {i, GidKind::kRoceV2, empty ? ibv_gid{} : ipv4Gid(10, 9, 0, i)});
  }
  const auto text = gidTableText(table);
  EXPECT_NE(text.find("10: 10.9.0.10 (RoCE v2) and 1 more"), std::string::npos)
      << text;
  EXPECT_EQ(text.find("11: "), std::string::npos) << text;
}

TEST(RdmaGid, OnlyTheNetworkTellsHowNearTwoAre) {
  const auto ours = ipv4Gid(10, 9, 1, 1);
  EXPECT_GT(
      commonNetworkBits(ours, ipv4Gid(10, 9, 1, 77)),
      commonNetworkBits(ours, ipv4Gid(10, 9, 2, 1)));
  // Ports of an InfiniBand subnet, or with only link-local addresses, are all
  // equally near, whatever the ports' own numbers.
  const auto port = ipv6Gid(0xfe, 0x80, 7);
  EXPECT_EQ(
      commonNetworkBits(port, ipv6Gid(0xfe, 0x80, 6)),
      commonNetworkBits(port, ipv6Gid(0xfe, 0x80, 120)));
  EXPECT_LT(
      commonNetworkBits(port, ipv6Gid(0xfe, 0xc0, 7)),
      commonNetworkBits(port, ipv6Gid(0xfe, 0x80, 120)));
}

const std::vector<std::string> kDevices{"mlx5_0", "mlx5_1", "mlx5_10", "bnxt"};

TEST(RdmaSelection, WholeNamesAreNotPrefixes) {
  EXPECT_TRUE(selects("mlx5_1", "mlx5_1", 1, kDevices));
  EXPECT_FALSE(selects("mlx5_1", "mlx5_10", 1, kDevices));
}

TEST(RdmaSelection, ExactNamesAreNoPrefixes) {
  EXPECT_FALSE(selects("=mlx5", "mlx5_10", 1, kDevices));
  EXPECT_TRUE(selects("=mlx5_10:2", "mlx5_10", 2, kDevices));
  EXPECT_FALSE(selects("^=mlx5_1", "mlx5_1", 1, kDevices));
  EXPECT_TRUE(selects("^=mlx5_1", "mlx5_10", 1, kDevices));
}

TEST(RdmaSelection, PrefixesPortsListsAndExclusions) {
  EXPECT_TRUE(selects("", "bnxt", 1, kDevices));
  EXPECT_TRUE(selects("mlx5", "mlx5_10", 2, kDevices));
  EXPECT_FALSE(selects("mlx5", "bnxt", 1, kDevices));
  EXPECT_TRUE(selects("bnxt,mlx5_0:2", "mlx5_0", 2, kDevices));
  EXPECT_FALSE(selects("bnxt,mlx5_0:2", "mlx5_0", 1, kDevices));
  EXPECT_FALSE(selects("^mlx5_0,bnxt", "bnxt", 1, kDevices));
  EXPECT_TRUE(selects("^mlx5_0,bnxt", "mlx5_1", 1, kDevices));
}

class RdmaNics : public ::testing::Test {
 protected:
  static NicList open(const std::string& wanted = "", int gidIndex = -1) {
    RdmaConfig config;
    config.nics = wanted;
    config.gidIndex = gidIndex;
    return openNics(FakeFabric::verbs(), config);
  }
};

TEST_F(RdmaNics, ActivePortsAreOpenedAndTheOthersNamedWithTheReason) {
  FakeDevice two;
  two.name = "mlx5_0";
  two.ports.resize(2);
  two.ports[1].state = IBV_PORT_DOWN;
  FakeDevice closed;
  closed.name = "closed";
  closed.openError = EACCES;
  FakeDevice bare;
  bare.name = "bare";
  bare.ports[0].gids.clear();
  FakeFabric fabric({two, closed, bare});
  {
    const auto found = open();
    std::vector<std::string> reasons;
    auto usable = found.usable(reasons);
    ASSERT_EQ(usable.size(), 1U);
    EXPECT_EQ(usable[0]->name(), "mlx5_0:1");
    EXPECT_EQ(
        usable[0]->describe(),
        "mlx5_0:1, Ethernet, GID 0 (10.9.0.1), 200 Gb/s, MTU 4096, NODE");
    ASSERT_EQ(reasons.size(), 3U);
    EXPECT_NE(reasons[0].find("closed"), std::string::npos);
    EXPECT_EQ(reasons[1], "mlx5_0:2 is not active");
    EXPECT_NE(reasons[2].find("no usable GID"), std::string::npos);
    // A cable is plugged in later, and the port gets a new address.
    fabric.setPort("mlx5_0", 1, IBV_PORT_ACTIVE);
    fabric.setPort("mlx5_0", 0, IBV_PORT_DOWN);
    usable = found.usable(reasons);
    ASSERT_EQ(usable.size(), 1U);
    EXPECT_EQ(usable[0]->name(), "mlx5_0:2");
    fabric.setGid("mlx5_0", 1, ipv4Gid(10, 9, 0, 77));
    usable = found.usable(reasons);
    EXPECT_EQ(gidText(usable.at(0)->gid().value), "10.9.0.77");
  }
  EXPECT_TRUE(fabric.live().empty());
}

TEST_F(RdmaNics, WantedNamesDecide) {
  FakeDevice first, second;
  first.name = "a0";
  second.name = "b0";
  FakeFabric fabric({first, second});
  const auto found = open("b0");
  ASSERT_EQ(found.nics.size(), 1U);
  EXPECT_EQ(found.nics[0]->name(), "b0:1");
  EXPECT_EQ(found.rejected.at(0), "a0:1 is not in DLSLIME_NICS=b0");
}

TEST_F(RdmaNics, AddressesBeyondWhatAnAddressHandleCanNameAreNotUsed) {
  FakeDevice many;
  auto& gids = many.ports[0].gids;
  FakeGid poor{IBV_GID_TYPE_ROCE_V2, ipv6Gid(0xfe, 0x80, 1)};
  gids.assign(300, poor);
  gids[256].value = ipv4Gid(10, 9, 0, 1); // the best
  FakeFabric fabric({many});
  const auto best = open().nics.at(0);
  ASSERT_TRUE(best->refresh().ok());
  EXPECT_EQ(best->gid().index, 0U);
  const auto last = open("", 255).nics.at(0);
  ASSERT_TRUE(last->refresh().ok());
  EXPECT_EQ(last->gid().index, 255U);
  const auto why = open("", 256).nics.at(0)->refresh().message();
  EXPECT_NE(why.find("no usable GID at index 256, "), std::string::npos) << why;
  EXPECT_NE(why.find("(RoCE v2) and 248 more; "), std::string::npos) << why;
}

TEST_F(RdmaNics, IndexWithoutAnAddressIsNamedWithTheTableAndTheVariables) {
  FakeDevice device;
  device.ports[0].gids.push_back(
      {IBV_GID_TYPE_ROCE_V1, ipv6Gid(0xfe, 0x80, 1)});
  FakeFabric fabric({device});
  EXPECT_EQ(
      open("", 200).nics.at(0)->refresh().message(),
      "fake0:1 has no usable GID at index 200, the table has 0: 10.9.0.1 (RoCE "
      "v2), 1: fe80::1 (RoCE v1); unset DLSLIME_GID_INDEX and "
      "NCCL_IB_GID_INDEX to take the best, or set one of these");
}

TEST_F(RdmaNics, PortWithoutAnAddressIsNamedWithWhatItNeeds) {
  FakeDevice roce, infiniBand;
  roce.name = "roce";
  roce.ports[0].gids = {{IBV_GID_TYPE_ROCE_V1, ipv4Gid(10, 9, 0, 1)}};
  infiniBand.name = "ib";
  infiniBand.ports[0].ethernet = false;
  infiniBand.ports[0].gids.clear();
  FakeFabric fabric({roce, infiniBand});
  const auto found = open();
  EXPECT_EQ(
      found.nics.at(0)->refresh().message(),
      "roce:1 has no usable GID, the table has 0: 10.9.0.1 (RoCE v1); give its "
      "network device an IP address, which RoCE v2 needs");
  EXPECT_EQ(
      found.nics.at(1)->refresh().message(),
      "ib:1 has no usable GID, the table has none; see whether a subnet "
      "manager runs");
}

TEST_F(RdmaNics, LackOfDescriptorsIsNoReasonToRejectADevice) {
  FakeDevice first, second;
  first.name = "a0";
  second.name = "b0";
  FakeFabric fabric({first, second});
  for (const int error : {EMFILE, ENFILE}) {
    fabric.failOpening("b0", error);
    const auto status = testing::statusOf([] { open(); });
    EXPECT_EQ(status.code(), ErrorCode::kExhausted) << status.message();
  }
  fabric.failOpening("b0", 0);
  EXPECT_EQ(open().nics.size(), 2U);
}

TEST_F(RdmaNics, TransportWithoutAPortSaysWhatItFound) {
  FakeDevice down;
  down.ports[0].state = IBV_PORT_DOWN;
  FakeFabric fabric({down});
  RdmaTransport transport{RdmaConfig{}};
  try {
    transport.offer({});
    FAIL() << "there is nothing to use";
  } catch (const Error& error) {
    EXPECT_EQ(error.status().code(), ErrorCode::kUnavailable);
    EXPECT_NE(
        std::string(error.what()).find("fake0:1 is not active"),
        std::string::npos)
        << error.what();
  }
}

TEST_F(RdmaNics, TransportNamesDevicesOfTheKernelThatItCannotOpen) {
  FakeFabric fabric(std::vector<FakeDevice>{});
  testing::MadeUpFolder sysfs;
  RdmaConfig config;
  config.sysfs = sysfs.root();
  const auto why = [&config] {
    return testing::statusOf([&] { RdmaTransport{config}.offer({}); });
  };
  EXPECT_EQ(why().message(), "no RDMA device is found");
  sysfs.put("class/infiniband_verbs/uverbs977/ibdev", "mlx5_7");
  EXPECT_EQ(why().code(), ErrorCode::kUnavailable);
  EXPECT_TRUE(testing::mentions(
      why(),
      "no RDMA device can be used: the kernel shows mlx5_7 but "
      "/dev/infiniband/uverbs977 can't be opened"))
      << why().message();
}

TEST_F(RdmaNics, TransportThatIsSwitchedOffSaysByWhat) {
  FakeFabric fabric;
  RdmaConfig config;
  config.enabled = false;
  try {
    const RdmaTransport transport{config};
    FAIL() << "it is switched off";
  } catch (const Error& error) {
    EXPECT_EQ(error.status().code(), ErrorCode::kUnavailable);
    EXPECT_NE(
        std::string(error.what()).find("DLSLIME_RDMA=off"), std::string::npos)
        << error.what();
  }
}

} // namespace
} // namespace dlslime::rdma
