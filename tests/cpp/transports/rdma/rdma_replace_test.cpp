// Connections over RDMA that break, and their replacement.
#include <gtest/gtest.h>

#include <thread>

#include "fakes/verbs/rdma_pair.h"

namespace dlslime::testing {
namespace {

class RdmaReplace : public RdmaPair {
 protected:
  RdmaReplace() : RdmaPair({nicOf(0), nicOf(1)}) {}
  void start(
      milliseconds recovery = milliseconds(30000),
      FallbackPolicy fallback = FallbackPolicy::kAllow) {
    const auto change = [recovery](Config& config, int /*rank*/) {
      config.recovery = recovery;
      config.patience = milliseconds(500);
    };
    RdmaPair::start(change, fallback);
  }
  void expectFailed(
      int rank,
      const std::shared_ptr<BufferOperation>& operation) {
    ASSERT_TRUE((*world)[rank].wait(operation));
    EXPECT_EQ(operation->status().code(), ErrorCode::kPeerFailed);
  }
};

TEST_F(RdmaReplace, CableThatComesBackCostsNothing) {
  start(milliseconds(30000), FallbackPolicy::kForbid);
  std::atomic<bool> over{false};
  std::thread other([&] { stream(1, 300, &over); });
  std::thread cutter([&] {
    cutOften();
    over = true;
  });
  stream(0, 300, &over);
  other.join();
  cutter.join();
  EXPECT_EQ(route(0), "rdma");
}

TEST_F(RdmaReplace, WhatHasComeOfAPullIsNotFetchedAgain) {
  // A pull has many pieces, of which 16 are fetched at a time.
  constexpr size_t kPieceBytes = 1 << 18, kPieces = 256;
  start(milliseconds(30000), FallbackPolicy::kForbid);
  fabric.hold("nic1", kPieceBytes, kPieces / 2);
  const auto before = fabric.bytes("nic1", IBV_WR_RDMA_READ);
  const auto fetched = [&] {
    return fabric.bytes("nic1", IBV_WR_RDMA_READ) - before;
  };
  const auto bytes = pattern(kPieces * kPieceBytes);
  const auto receive = (*world)[1].receive(0, 5, bytes.size());
  const auto send = (*world)[0].send(1, 5, bytes);
  std::thread waiter([&] { EXPECT_TRUE((*world)[1].wait(receive)); });
  EXPECT_TRUE(
      eventually([&] { return fetched() > kPieces / 2 * kPieceBytes; }));
  fabric.cut("nic1");
  EXPECT_TRUE(eventually([&] { return log.count("is lost") > 0; }));
  fabric.cut("nic1", false);
  waiter.join();
  ASSERT_TRUE(receive->status().ok()) << receive->status().message();
  EXPECT_EQ(receive->buffer(), bytes);
  ASSERT_TRUE((*world)[0].wait(send));
  EXPECT_GE(replaced(1), 1U);
  // A connection begins with a small read, the greeting.
  EXPECT_LT(fetched(), (kPieces + 16 * replaced(1) + 1) * kPieceBytes);
}

// A refused record is sent once, over the next connection.
TEST_F(RdmaReplace, RecordThatTheDeviceRefusesGoesByTheNextConnection) {
  start(milliseconds(30000), FallbackPolicy::kForbid);
  ASSERT_TRUE(world->passes(0, 1, 100));
  fabric.failPosts(1, EIO);
  stream(0, 20);
  EXPECT_GE(replaced(0), 1U);
  EXPECT_EQ(route(0), "rdma");
}

TEST_F(RdmaReplace, LastNicThatDiesIsFollowedByTcp) {
  start();
  EXPECT_EQ(route(0), "rdma");
  std::thread other([&] { stream(1, 100); });
  std::this_thread::sleep_for(milliseconds(10));
  fabric.cut("nic1");
  stream(0, 100);
  other.join();
  for (const int rank : {0, 1}) {
    EXPECT_EQ(route(rank), "tcp");
    const auto rejected = report(rank).rejected;
    ASSERT_FALSE(rejected.empty());
    EXPECT_NE(rejected.back().reason.find("RETRY_EXC"), std::string::npos)
        << rejected.back().reason;
  }
}

TEST_F(RdmaReplace, NicThatConnectsButPassesNothingIsNotUsed) {
  fabric.cut("nic1");
  start();
  ASSERT_TRUE(world->passes(0, 1, 100000));
  EXPECT_EQ(route(0), "tcp");
  EXPECT_EQ(route(1), "tcp");
}

TEST_F(RdmaReplace, WithoutAnotherWayEverythingFailsWithNicAndStatus) {
  start(milliseconds(200), FallbackPolicy::kForbid);
  const auto pending = (*world)[0].receive(1, 5, 100);
  fabric.cut("nic0");
  const auto send = (*world)[0].send(1, 5, pattern(1 << 20));
  for (const auto& operation : {pending, send}) {
    expectFailed(0, operation);
    const auto text = operation->status().message();
    EXPECT_NE(text.find("nic0:1: IBV_WC_RETRY_EXC_ERR"), std::string::npos)
        << text;
    EXPECT_NE(text.find("DLSLIME_RECOVERY_MS"), std::string::npos) << text;
  }
  // The peer has not noticed the cut, having sent nothing.
  expectFailed(1, (*world)[1].receive(0, 5, 100));
}

TEST_F(RdmaReplace, PeerThatEndsMeanwhileIsNotWaitedFor) {
  start(kAnHour, FallbackPolicy::kForbid);
  const auto pending = (*world)[0].receive(1, 5, 100);
  fabric.cut("nic0");
  const auto send = (*world)[0].send(1, 5, pattern(1 << 20));
  ASSERT_TRUE(eventually([&] { return log.count("is lost") > 0; }));
  world->stop(1);
  for (const auto& operation : {pending, send}) {
    expectFailed(0, operation);
  }
}

} // namespace
} // namespace dlslime::testing
