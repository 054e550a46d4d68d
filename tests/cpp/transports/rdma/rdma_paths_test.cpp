// Attributes with which queue pairs are connected, and effects of a device's
// events on the queue pairs.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>

#include "fakes/log_capture.h"
#include "fakes/status_of.h"
#include "fakes/verbs/rdma_hosts.h"
#include "transports/rdma/rdma_transport.h"

namespace dlslime::testing {
namespace {

FakeDevice ethernetNic(const char* name, uint8_t address) {
  FakeDevice device;
  device.name = name;
  device.ports[0].gids[0].value = ipv4Gid(10, 9, 0, address);
  return device;
}

FakeDevice infiniBandNic(const char* name, uint16_t lid, uint8_t subnet = 0) {
  FakeDevice device;
  device.name = name;
  auto& port = device.ports[0];
  port.ethernet = false;
  port.lid = lid;
  ibv_gid gid{};
  gid.raw[0] = 0xfe;
  gid.raw[1] = 0x80;
  gid.raw[7] = subnet;
  gid.raw[15] = static_cast<uint8_t>(lid);
  port.gids = {{IBV_GID_TYPE_IB, gid}};
  return device;
}

// A transport on "left" and a transport on "right".
class Ends {
 public:
  Ends(FakeDevice left, FakeDevice right, RdmaConfig config = {})
      : fabric({std::move(left), std::move(right)}) {
    for (const int end : {0, 1}) {
      config.nics = end == 0 ? "left" : "right";
      transports[end] = std::make_unique<rdma::RdmaTransport>(config);
    }
  }
  void connect() {
    Offer answer;
    auto offer = transports[0]->offer(context_);
    connections[1] = transports[1]->accept(context_, std::move(offer), answer);
    connections[0] = transports[0]->finish(context_, std::move(answer));
  }
  // Returns the attributes of the queue pair's only step to `state`.
  ibv_qp_attr step(const char* device, ibv_qp_state state) {
    const auto steps = fabric.steps(device, state);
    EXPECT_EQ(steps.size(), 1U) << device << " " << state;
    return steps.empty() ? ibv_qp_attr{} : steps.back();
  }
  ibv_ah_attr path(const char* device) {
    return step(device, IBV_QPS_RTR).ah_attr;
  }

  AuditedFabric fabric;
  std::unique_ptr<rdma::RdmaTransport> transports[2];
  std::unique_ptr<Connection> connections[2];

 private:
  Transport::Context context_{nullptr, "n", true, {}, 0};
};

TEST(RdmaPaths, WhatIsConfiguredReachesTheQueuePair) {
  auto left = ethernetNic("left", 1), right = ethernetNic("right", 2);
  for (auto* const device : {&left, &right}) {
    auto& gids = device->ports[0].gids;
    gids.push_back(gids[0]);
    gids[1].value.raw[13] = 77;
  }
  RdmaConfig config;
  config.serviceLevel = 3;
  config.trafficClass = 106;
  config.pkeyIndex = 5;
  config.timeout = 19;
  config.retryCount = 4;
  config.gidIndex = 1;
  Ends ends(left, right, config);
  ends.connect();
  for (const char* const name : {"left", "right"}) {
    SCOPED_TRACE(name);
    const auto init = ends.step(name, IBV_QPS_INIT);
    EXPECT_EQ(init.pkey_index, 5);
    EXPECT_EQ(init.port_num, 1);
    const auto path = ends.path(name);
    EXPECT_EQ(path.port_num, 1);
    EXPECT_EQ(path.sl, 3);
    EXPECT_EQ(path.is_global, 1);
    EXPECT_EQ(path.grh.traffic_class, 106);
    EXPECT_EQ(path.grh.sgid_index, 1);
    EXPECT_GT(path.grh.hop_limit, 1) << "networks are routed";
    EXPECT_EQ(path.grh.dgid.raw[13], 77);
    EXPECT_EQ(path.grh.dgid.raw[15], name[0] == 'l' ? 2 : 1) << "the peer's";
    const auto ready = ends.step(name, IBV_QPS_RTS);
    EXPECT_EQ(ready.timeout, 19);
    EXPECT_EQ(ready.retry_cnt, 4);
  }
}

TEST(RdmaPaths, DefaultsReachTheQueuePair) {
  Ends ends(ethernetNic("left", 1), ethernetNic("right", 2));
  ends.connect();
  EXPECT_EQ(ends.step("left", IBV_QPS_INIT).pkey_index, 0);
  EXPECT_EQ(ends.path("left").sl, 0);
  EXPECT_EQ(ends.path("left").grh.traffic_class, 0);
  EXPECT_EQ(ends.path("left").grh.sgid_index, 0);
  EXPECT_EQ(ends.step("left", IBV_QPS_RTS).timeout, 17);
  EXPECT_EQ(ends.step("left", IBV_QPS_RTS).retry_cnt, 7);
  EXPECT_EQ(ends.step("left", IBV_QPS_RTS).rnr_retry, 7) << "for ever";
}

TEST(RdmaPaths, EndsExpectOneAnothersPacketsAndReads) {
  Ends ends(ethernetNic("left", 1), ethernetNic("right", 2));
  ends.connect();
  const auto& names = {std::pair("left", "right"), std::pair("right", "left")};
  for (const auto& [name, other] : names) {
    const auto receiving = ends.step(name, IBV_QPS_RTR);
    EXPECT_EQ(receiving.rq_psn, ends.step(other, IBV_QPS_RTS).sq_psn);
    EXPECT_EQ(receiving.max_dest_rd_atomic, 16);
    EXPECT_EQ(ends.step(name, IBV_QPS_RTS).max_rd_atomic, 16);
  }
  EXPECT_NE(
      ends.step("left", IBV_QPS_RTR).dest_qp_num,
      ends.step("right", IBV_QPS_RTR).dest_qp_num);
}

TEST(RdmaPaths, MtuIsTheSmallerOfBothPorts) {
  for (const bool leftIsSmaller : {true, false}) {
    auto left = ethernetNic("left", 1), right = ethernetNic("right", 2);
    (leftIsSmaller ? left : right).ports[0].mtu = IBV_MTU_1024;
    Ends ends(left, right);
    ends.connect();
    EXPECT_EQ(ends.step("left", IBV_QPS_RTR).path_mtu, IBV_MTU_1024);
    EXPECT_EQ(ends.step("right", IBV_QPS_RTR).path_mtu, IBV_MTU_1024);
  }
}

TEST(RdmaPaths, InfiniBandGoesByLidWithinASubnet) {
  Ends ends(infiniBandNic("left", 11), infiniBandNic("right", 12));
  ends.connect();
  EXPECT_EQ(ends.path("left").dlid, 12);
  EXPECT_EQ(ends.path("right").dlid, 11);
  EXPECT_EQ(ends.path("left").is_global, 0);
  EXPECT_EQ(ends.path("right").is_global, 0);
}

TEST(RdmaPaths, InfiniBandBetweenSubnetsHasTheGlobalHeader) {
  Ends ends(infiniBandNic("left", 11, 1), infiniBandNic("right", 12, 2));
  ends.connect();
  EXPECT_EQ(ends.path("left").is_global, 1);
  EXPECT_EQ(ends.path("left").dlid, 12);
  EXPECT_EQ(ends.path("left").grh.dgid.raw[7], 2);
  EXPECT_EQ(ends.path("right").is_global, 1);
}

TEST(RdmaPaths, PortsThatShareALidHaveTheGlobalHeader) {
  auto left = infiniBandNic("left", 11), right = infiniBandNic("right", 12);
  left.ports[0].flags = right.ports[0].flags = IBV_QPF_GRH_REQUIRED;
  Ends ends(left, right);
  ends.connect();
  EXPECT_EQ(ends.path("left").is_global, 1);
  EXPECT_EQ(ends.path("left").grh.dgid.raw[15], 12);
  EXPECT_EQ(ends.path("right").is_global, 1);
}

// A port of a virtual machine shares its LID; the peer is a port of a host.
TEST(RdmaPaths, PortsOfWhichOneSharesItsLidHaveTheGlobalHeaderBothWays) {
  auto right = infiniBandNic("right", 12);
  right.ports[0].flags = IBV_QPF_GRH_REQUIRED;
  Ends ends(infiniBandNic("left", 11), right);
  ends.connect();
  EXPECT_EQ(ends.path("left").is_global, 1);
  EXPECT_EQ(ends.path("right").is_global, 1);
}

TEST(RdmaPaths, EthernetAndInfiniBandDoNotMeet) {
  const auto refusal = [](const FakeDevice& left, const FakeDevice& right) {
    Ends ends(left, right);
    return statusOf([&] { ends.connect(); });
  };
  const auto forth =
      refusal(ethernetNic("left", 1), infiniBandNic("right", 12));
  EXPECT_EQ(forth.code(), ErrorCode::kUnavailable);
  EXPECT_EQ(
      forth.message(),
      "the peer's NICs are Ethernet, and no NIC of this process is");
  const auto back = refusal(infiniBandNic("left", 11), ethernetNic("right", 2));
  EXPECT_EQ(
      back.message(),
      "the peer's NICs are InfiniBand, and no NIC of this process is");
}

TEST(RdmaPaths, QueuePairOfInfiniBandRefusesAnEthernetPeer) {
  const AuditedFabric fabric({infiniBandNic("right", 12)});
  const auto nic = rdma::openNics(FakeFabric::verbs(), {}).nics.at(0);
  ASSERT_TRUE(nic->refresh().ok());
  rdma::QueuePair pair(
      nic,
      std::make_shared<rdma::CompletionQueue>(nic->context(), nullptr, 10),
      {1, 1, 0},
      {});
  auto peer = pair.address();
  peer.ethernet = true;
  const auto refused = statusOf([&] { pair.connect(peer); });
  EXPECT_EQ(refused.code(), ErrorCode::kUnavailable);
  EXPECT_EQ(refused.message(), "right:1 is InfiniBand, the peer's NIC is not");
}

struct NoEvents final : ConnectionEvents {
  void onMessage(const MessageHeader&, ByteSpan) override {}
  void onPulled(uint64_t, const Status&) override {}
};

// Returns the status of the left end.
Status brokenBy(Ends& ends) {
  NoEvents events;
  Status broken;
  ends.connections[0]->poll(events, broken, 1000);
  return broken;
}

TEST(RdmaPaths, ConnectionBreaksWhenTheSubnetManagerChangesTheLid) {
  Ends ends(infiniBandNic("left", 11), infiniBandNic("right", 12));
  ends.connect();
  ends.fabric.setLid("left", 0, 11);
  EXPECT_FALSE(ends.transports[0]->onDevices().down) << "it is the same";
  EXPECT_TRUE(brokenBy(ends).ok());
  ends.fabric.setLid("left", 0, 21);
  const auto news = ends.transports[0]->onDevices();
  EXPECT_TRUE(news.down);
  EXPECT_TRUE(news.up) << "there is another way at once";
  EXPECT_EQ(
      brokenBy(ends).message(), "RDMA by left:1: its address has changed");
  ends.connect();
  EXPECT_EQ(ends.fabric.steps("right", IBV_QPS_RTR).back().ah_attr.dlid, 21);
}

// A port gets the LID before becoming active.
TEST(RdmaPaths, ConnectionBreaksWhenAPortComesBackWithAnotherLid) {
  Ends ends(infiniBandNic("left", 11), infiniBandNic("right", 12));
  ends.connect();
  ends.fabric.setPort("left", 0, IBV_PORT_DOWN);
  EXPECT_FALSE(ends.transports[0]->onDevices().down) << "there is no other";
  ends.fabric.setLid("left", 0, 21);
  ends.transports[0]->onDevices();
  EXPECT_TRUE(brokenBy(ends).ok());
  ends.fabric.setPort("left", 0, IBV_PORT_ACTIVE);
  EXPECT_TRUE(ends.transports[0]->onDevices().down);
  EXPECT_EQ(
      brokenBy(ends).message(), "RDMA by left:1: its address has changed");
}

TEST(RdmaPaths, LidsAreNothingToEthernet) {
  Ends ends(ethernetNic("left", 1), ethernetNic("right", 2));
  ends.connect();
  ends.fabric.setLid("left", 0, 21);
  EXPECT_FALSE(ends.transports[0]->onDevices().down);
  EXPECT_TRUE(brokenBy(ends).ok());
}

TEST(RdmaPaths, QueueThatFailsLosesAllPortsOfItsDevice) {
  auto left = ethernetNic("left", 1);
  left.ports.push_back(left.ports[0]);
  left.ports[1].gids[0].value = ipv4Gid(10, 9, 0, 3);
  const LogCapture log(LogLevel::kInfo);
  Ends ends(left, ethernetNic("right", 2));
  ends.connect();
  ends.fabric.tell("right", IBV_EVENT_CQ_ERR);
  EXPECT_FALSE(ends.transports[0]->onDevices().down) << "another device's";
  EXPECT_TRUE(brokenBy(ends).ok());
  ends.fabric.tell("left", IBV_EVENT_CQ_ERR, 0);
  EXPECT_TRUE(ends.transports[0]->onDevices().down);
  EXPECT_TRUE(mentions(
      brokenBy(ends), ": a completion queue has failed (IBV_EVENT_CQ_ERR)"));
  EXPECT_EQ(log.count("left:1: a completion queue has failed"), 1U);
  EXPECT_EQ(log.count("left:2: a completion queue has failed"), 1U);
}

TEST(RdmaPaths, LackOfDescriptorsLosesNoNic) {
  Ends ends(ethernetNic("left", 1), ethernetNic("right", 2));
  for (const int error : {EMFILE, ENFILE}) {
    ends.fabric.failOpening("right", error);
    const auto status = statusOf([&] { ends.transports[0]->offer({}); });
    EXPECT_EQ(status.code(), ErrorCode::kExhausted) << status.message();
    EXPECT_TRUE(mentions(status, "cannot open RDMA device right"));
  }
  ends.fabric.failOpening("right", 0);
  ends.connect(); // without delay
}

TEST(RdmaPaths, DeviceThatMayNotBeOpenedIsLeftToTheOthers) {
  Ends ends(ethernetNic("left", 1), ethernetNic("right", 2));
  ends.fabric.failOpening("right", EACCES);
  EXPECT_TRUE(statusOf([&] { ends.transports[0]->describe(); }).ok());
  const auto status = statusOf([&] { ends.transports[1]->describe(); });
  EXPECT_EQ(status.code(), ErrorCode::kUnavailable);
  EXPECT_TRUE(mentions(status, "errno 13")) << status.message();
}

} // namespace
} // namespace dlslime::testing
