// Refusals and limits of devices, and how connections use a device.
#include <gtest/gtest.h>

#include <cerrno>

#include "fakes/verbs/rdma_pair.h"

namespace dlslime::testing {
namespace {

class RdmaFaults : public RdmaPair {
 protected:
  RdmaFaults() : RdmaPair({nicOf(0), nicOf(1), nicOf(2)}) {}
};

// Any failure costs RDMA, names the failed call, and leaves nothing behind.
TEST_F(RdmaFaults, ObjectsThatADeviceDoesNotMakeLeaveTcpAndTheReason) {
  const std::pair<const char*, const char*> calls[] = {
      {"alloc_pd", "cannot make a protection domain"},
      {"create_comp_channel", "cannot make a completion channel"},
      {"create_cq", "cannot make a completion queue of"},
      {"post_recv", "receives"}};
  for (const auto& [call, text] : calls) {
    fabric.refuse(call, ENOMEM);
    start();
    EXPECT_EQ(route(0), "tcp") << call;
    const auto rejected = report(0).rejected;
    ASSERT_FALSE(rejected.empty()) << call;
    EXPECT_NE(rejected.back().reason.find(text), std::string::npos)
        << call << ": " << rejected.back().reason;
    world.reset();
    EXPECT_TRUE(fabric.live().empty()) << call;
    fabric.refuse(call, 0);
  }
}

// Ports with jumbo frames and a switch without: only small messages pass.
TEST_F(RdmaFaults, PacketsThatAreTooLargeForTheWayLeaveTcpAndTheReason) {
  fabric.dropLarger("nic1", 1500);
  start();
  EXPECT_EQ(route(0), "tcp");
  const auto rejected = report(0).rejected;
  ASSERT_FALSE(rejected.empty());
  EXPECT_NE(rejected.back().reason.find("MTU"), std::string::npos)
      << rejected.back().reason;
  EXPECT_EQ(replaced(0), 0U);
  ASSERT_TRUE(world->passes(0, 1, 4 << 20));
}

// With a queue that is not armed, a sleeping thread would never wake.
TEST_F(RdmaFaults, QueueThatCannotBeArmedIsLost) {
  start();
  EXPECT_EQ(route(0), "rdma");
  fabric.refuse("req_notify_cq", EIO);
  const auto receive = (*world)[1].receive(0, 1, 100);
  // If all threads sleep already, the waiting thread arms the queue again.
  EXPECT_TRUE(eventually([&] {
    (*world)[1].engine->wait(*receive, deadlineAfter(milliseconds(5)));
    return log.count("is lost") > 0;
  })) << log.all();
  fabric.refuse("req_notify_cq", 0);
  const auto send = (*world)[0].send(1, 1, pattern(100));
  ASSERT_TRUE((*world)[1].wait(receive));
  EXPECT_TRUE(receive->status().ok()) << receive->status().message();
  ASSERT_TRUE((*world)[0].wait(send));
}

TEST_F(RdmaFaults, ReceiverThatIsNotReadyIsTriedAgain) {
  start();
  for (const char* const nic : {"nic0", "nic1"}) {
    fabric.unready(nic, 50);
    stream(0, 30);
    stream(1, 30);
  }
  EXPECT_EQ(replaced(0), 0U);
  EXPECT_EQ(fabric.withoutReceives(), 0U);
}

// A pair's queue pairs are made with the pair's connection.
TEST_F(RdmaFaults, QueuePairsAreMadeForThePairsThatTalk) {
  world.emplace(3, rdmaHost);
  EXPECT_EQ(fabric.live()["qp"], 0);
  ASSERT_TRUE(world->passes(0, 1));
  const int ofAPair = fabric.live()["qp"];
  EXPECT_GT(ofAPair, 0);
  ASSERT_TRUE(world->passes(1, 0));
  EXPECT_EQ(fabric.live()["qp"], ofAPair);
  ASSERT_TRUE(world->passes(2, 1));
  EXPECT_EQ(fabric.live()["qp"], 2 * ofAPair);
  ASSERT_TRUE(world->passes(0, 2));
  EXPECT_EQ(fabric.live()["qp"], 3 * ofAPair);
}

TEST_F(RdmaFaults, SmallMessagesGoInlineAndFewTellTheirEnd) {
  start();
  const auto inlined = fabric.inlined(), signalled = fabric.signalled();
  const auto written = fabric.requests(IBV_WR_RDMA_WRITE_WITH_IMM);
  for (int i = 0; i < 320; ++i) {
    ASSERT_TRUE(world->passes(0, 1, 8));
  }
  EXPECT_GE(fabric.inlined() - inlined, 320U);
  EXPECT_GE(fabric.requests(IBV_WR_RDMA_WRITE_WITH_IMM) - written, 320U);
  // A signalled request for each 32 at either end, credits included.
  EXPECT_LE(fabric.signalled() - signalled, 40U);
  EXPECT_GE(fabric.signalled() - signalled, 10U);
  const auto before = fabric.inlined();
  const auto receive = (*world)[1].receive(0, 1, 1000);
  const auto send = (*world)[0].send(1, 1, pattern(1000));
  ASSERT_TRUE((*world)[1].wait(receive));
  EXPECT_EQ(fabric.inlined(), before) << "more than the device takes";
}

class RdmaWithoutInline : public RdmaPair {
 protected:
  RdmaWithoutInline() : RdmaPair(devices()) {}
  static std::vector<FakeDevice> devices() {
    std::vector<FakeDevice> all{nicOf(0), nicOf(1)};
    all[0].maxInline = 0;
    all[1].maxInline = 30; // less than any record
    return all;
  }
};

TEST_F(RdmaWithoutInline, NothingGoesInline) {
  start();
  EXPECT_EQ(route(0), "rdma");
  stream(0, 30);
  stream(1, 30);
  EXPECT_EQ(fabric.inlined(), 0U);
}

} // namespace
} // namespace dlslime::testing
