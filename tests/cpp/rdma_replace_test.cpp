// Connections over RDMA that break, and what takes their place.
#include <gtest/gtest.h>

#include <thread>

#include "fakes/cluster.h"
#include "fakes/fake_verbs.h"
#include "fakes/log_capture.h"
#include "fakes/memory_carriers.h"
#include "fakes/rdma_hosts.h"

namespace dlslime::testing {
namespace {

class RdmaReplace : public ::testing::Test {
 protected:
  void start(
      milliseconds recovery = milliseconds(30000),
      FallbackPolicy fallback = FallbackPolicy::kAllow) {
    world.emplace(
        2,
        [recovery](int rank) {
          auto config = rdmaHost(rank);
          config.recovery = recovery;
          return config;
        },
        [this, fallback](GroupOptions& options) {
          options.carrierSource = carriers;
          options.fallback = fallback;
        });
  }
  std::string route(int rank) {
    auto& node = (*world)[rank];
    return node.engine->report(*node.group).at(0).route;
  }
  // Messages of all sizes from one rank, one after the other, each checked.
  void stream(int from, int count) {
    for (int i = 0; i < count && !HasFatalFailure(); ++i) {
      const size_t size = i % 7 == 0 ? (2 << 20) + 5
          : i % 3 == 0               ? 300000
                                     : 1 + 700 * size_t(i % 50);
      const auto bytes = pattern(size, unsigned(i));
      const auto receive = (*world)[1 - from].receive(from, from, size);
      const auto send = (*world)[from].send(1 - from, from, bytes);
      ASSERT_TRUE((*world)[1 - from].wait(receive)) << i;
      ASSERT_TRUE(receive->status().ok()) << receive->status().message();
      ASSERT_EQ(receive->buffer(), bytes) << i;
      ASSERT_TRUE((*world)[from].wait(send)) << i;
      ASSERT_TRUE(send->status().ok()) << send->status().message();
    }
  }

  void expectFailed(
      int rank,
      const std::shared_ptr<BufferOperation>& operation) {
    ASSERT_TRUE((*world)[rank].wait(operation));
    EXPECT_EQ(operation->status().code(), ErrorCode::kPeerFailed);
  }

  LogCapture log;
  AuditedFabric fabric{{nicOf(0), nicOf(1)}};
  std::shared_ptr<MemoryCarriers> carriers = std::make_shared<MemoryCarriers>();
  std::optional<Cluster> world;
};

TEST_F(RdmaReplace, CableThatComesBackCostsNothing) {
  start(milliseconds(30000), FallbackPolicy::kForbid);
  ASSERT_TRUE(world->passes(0, 1));
  std::atomic<bool> over{false};
  std::thread other([&] { stream(1, 300); });
  std::thread cutter([&] {
    for (int i = 0; !over; ++i) {
      std::this_thread::sleep_for(milliseconds(3 + i % 20));
      fabric.cut(i % 2 == 0 ? "nic0" : "nic1");
      std::this_thread::sleep_for(milliseconds(i % 5));
      fabric.cut(i % 2 == 0 ? "nic0" : "nic1", false);
    }
  });
  stream(0, 300);
  other.join();
  over = true;
  cutter.join();
  EXPECT_EQ(route(0), "rdma");
  EXPECT_GT(log.count("is lost (RDMA by nic"), 1U) << log.all();
}

TEST_F(RdmaReplace, LastNicThatDiesIsFollowedByGloo) {
  start(milliseconds(4000));
  ASSERT_TRUE(world->passes(0, 1));
  EXPECT_EQ(route(0), "rdma");
  std::thread other([&] { stream(1, 100); });
  std::this_thread::sleep_for(milliseconds(10));
  fabric.cut("nic1");
  stream(0, 100);
  other.join();
  for (const int rank : {0, 1}) {
    EXPECT_EQ(route(rank), "gloo");
    auto& node = (*world)[rank];
    const auto rejected = node.engine->report(*node.group).at(0).rejected;
    ASSERT_FALSE(rejected.empty());
    EXPECT_NE(rejected.back().reason.find("RETRY_EXC"), std::string::npos)
        << rejected.back().reason;
  }
}

TEST_F(RdmaReplace, NicThatConnectsButPassesNothingIsNotUsed) {
  start();
  fabric.cut("nic1");
  ASSERT_TRUE(world->passes(0, 1, 100000));
  EXPECT_EQ(route(0), "gloo");
  EXPECT_EQ(route(1), "gloo");
}

TEST_F(RdmaReplace, WithoutAnotherWayEverythingFailsWithNicAndStatus) {
  start(milliseconds(200), FallbackPolicy::kForbid);
  ASSERT_TRUE(world->passes(0, 1));
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
  // The other end has not noticed by itself: nothing was sent from there.
  expectFailed(1, (*world)[1].receive(0, 5, 100));
}

TEST_F(RdmaReplace, PeerThatEndsMeanwhileIsNotWaitedFor) {
  start(milliseconds(3600000), FallbackPolicy::kForbid);
  ASSERT_TRUE(world->passes(0, 1));
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
