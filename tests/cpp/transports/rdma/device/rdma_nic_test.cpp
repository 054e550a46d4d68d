// Which ports are used, and with which addresses.
#include "transports/rdma/device/nic.h"

#include <gtest/gtest.h>

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
  EXPECT_EQ(
      open("", 256).nics.at(0)->refresh().message(),
      "fake0:1 has no GID at index 256");
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
