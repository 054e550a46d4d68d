// Failback to RDMA, and events told by devices.
#include <gtest/gtest.h>

#include <ctime>
#include <thread>

#include "fakes/verbs/rdma_pair.h"

namespace dlslime::testing {
namespace {

// Tries failback soon.
void soon(Config& config, int /*rank*/) {
  config.patience = milliseconds(100);
  config.returning = milliseconds(50);
}
// Tries failback only when a device tells an event.
void ifTold(Config& config, int /*rank*/) {
  config.patience = milliseconds(100);
  config.returning = kAnHour;
}

// Traffic in both directions, as long as the object lives.
class Traffic {
 public:
  using Stream = std::function<void(int from, const std::atomic<bool>* over)>;
  explicit Traffic(const Stream& stream) {
    for (const int from : {0, 1}) {
      threads_.emplace_back([=, this] { stream(from, &over_); });
    }
  }
  ~Traffic() {
    over_ = true;
    for (auto& thread : threads_) {
      thread.join();
    }
  }
  Traffic(const Traffic&) = delete;
  Traffic& operator=(const Traffic&) = delete;

 private:
  std::atomic<bool> over_{false};
  std::vector<std::thread> threads_;
};

class RdmaReturn : public RdmaPair {
 protected:
  explicit RdmaReturn(std::vector<FakeDevice> devices = {nicOf(0), nicOf(1)})
      : RdmaPair(std::move(devices)) {}
  Traffic::Stream bothWays() {
    return [this](int from, const std::atomic<bool>* over) {
      stream(from, 20, over);
    };
  }
  bool bothGoBy(const std::string& name) {
    return eventually([&] { return route(0) == name && route(1) == name; });
  }
};

TEST_F(RdmaReturn, TcpIsLeftWhenTheCableIsBack) {
  start(soon);
  const Traffic traffic(bothWays());
  fabric.cut("nic1");
  ASSERT_TRUE(bothGoBy("tcp")) << log.all();
  fabric.cut("nic1", false);
  ASSERT_TRUE(bothGoBy("rdma")) << log.all();
  EXPECT_GT(log.count("a better connection is possible: rdma by nic"), 0U);
}

TEST_F(RdmaReturn, ManyTimes) {
  start([](Config& config, int /*rank*/) {
    config.patience = milliseconds(10);
    config.returning = milliseconds(5);
  });
  const Traffic traffic(bothWays());
  for (int i = 0; i < 10; ++i) {
    const auto* const nic = i % 2 == 0 ? "nic0" : "nic1";
    fabric.cut(nic);
    ASSERT_TRUE(bothGoBy("tcp")) << log.all();
    fabric.cut(nic, false);
    ASSERT_TRUE(bothGoBy("rdma")) << log.all();
  }
}

TEST_F(RdmaReturn, NothingChangesWhileTheCableIsOut) {
  start(soon);
  fabric.cut("nic1");
  ASSERT_TRUE(world->passes(0, 1, 100000));
  ASSERT_TRUE(bothGoBy("tcp")) << log.all();
  const auto before = replaced(0);
  for (int i = 0; i < 20; ++i) {
    std::this_thread::sleep_for(milliseconds(10));
    ASSERT_TRUE(world->passes(0, 1, 1000));
  }
  EXPECT_EQ(replaced(0), before);
  EXPECT_EQ(route(1), "tcp");
}

TEST_F(RdmaReturn, NicThatComesUpLateIsUsed) {
  fabric.setPort("nic0", 0, IBV_PORT_DOWN);
  start(ifTold);
  EXPECT_EQ(route(0), "tcp");
  fabric.setPort("nic0", 0, IBV_PORT_ACTIVE);
  ASSERT_TRUE(bothGoBy("rdma")) << log.all();
  ASSERT_TRUE(world->passes(0, 1, 1 << 20));
}

TEST_F(RdmaReturn, OnlyNicsPortMayComeBackWithinItsRetries) {
  start(ifTold);
  fabric.setPort("nic0", 0, IBV_PORT_DOWN);
  std::this_thread::sleep_for(milliseconds(50));
  ASSERT_TRUE(world->passes(0, 1, 1 << 20));
  EXPECT_EQ(replaced(0), 0U);
}

TEST_F(RdmaReturn, DeviceThatFailsIsNotWaitedFor) {
  start(ifTold);
  fabric.cut("nic0");
  fabric.tell("nic0", IBV_EVENT_DEVICE_FATAL);
  ASSERT_TRUE(bothGoBy("tcp")) << log.all();
  EXPECT_GT(log.count("is lost (RDMA by nic0:1: the device has failed"), 0U)
      << log.all();
}

// Returns the process's share of a core while idle.
double idleShare() {
  std::this_thread::sleep_for(
      // Lets pending work end.
      milliseconds(100));
  const auto before = std::clock();
  std::this_thread::sleep_for(milliseconds(300));
  return double(std::clock() - before) / CLOCKS_PER_SEC / 0.3;
}

TEST_F(RdmaReturn, DeviceThatIsTakenOutKeepsNoThreadBusy) {
  start(ifTold);
  fabric.remove("nic0");
  ASSERT_TRUE(bothGoBy("tcp")) << log.all();
  EXPECT_GT(log.count("nic0:1: the device is gone"), 0U) << log.all();
  ASSERT_TRUE(world->passes(0, 1, 100000));
  EXPECT_LT(idleShare(), 0.5);
}

TEST_F(RdmaReturn, PortThatComesUpChangesNothingWithoutFailback) {
  fabric.setPort("nic0", 0, IBV_PORT_DOWN);
  start([](Config& config, int /*rank*/) { config.returning = {}; });
  fabric.setPort("nic0", 0, IBV_PORT_ACTIVE);
  EXPECT_LT(idleShare(), 0.5);
  EXPECT_EQ(route(0), "tcp");
}

TEST_F(RdmaReturn, OldAddressIsNotUsedForLong) {
  RdmaPair::start(ifTold, FallbackPolicy::kForbid);
  fabric.setGid("nic0", 0, ipv4Gid(10, 9, 0, 77));
  ASSERT_TRUE(eventually([&] { return replaced(0) > 0 && replaced(1) > 0; }));
  EXPECT_GT(log.count("its address has changed"), 0U) << log.all();
  EXPECT_EQ(route(0), "rdma");
  ASSERT_TRUE(world->passes(0, 1, 1 << 20));
}

class RdmaRailReturn : public RdmaReturn {
 protected:
  RdmaRailReturn() : RdmaReturn(twoNetworks()) {}
  void start(
      const Change& change,
      FallbackPolicy fallback = FallbackPolicy::kAllow) {
    RdmaPair::start(
        [change](Config& config, int rank) {
          config.rdma.nics = "nic" + std::to_string(rank);
          change(config, rank);
        },
        fallback);
  }
  bool bothGoByNics(const std::string& letters) {
    return eventually(
        [&] { return nicsOf(0) == letters && nicsOf(1) == letters; });
  }

 private:
  std::string nicsOf(int rank) {
    const auto told = devices(rank);
    std::string letters;
    for (const char letter : {'a', 'b'}) {
      const auto name = "nic" + std::to_string(rank) + letter;
      if (told.find(name) != std::string::npos) {
        letters += letter;
      }
    }
    return letters;
  }
};

TEST_F(RdmaRailReturn, NicIsUsedAgainWhenTheCableIsBack) {
  start(soon);
  ASSERT_TRUE(bothGoByNics("ab"));
  const Traffic traffic(bothWays());
  fabric.cut("nic1a");
  ASSERT_TRUE(bothGoByNics("b")) << log.all();
  fabric.cut("nic1a", false);
  ASSERT_TRUE(bothGoByNics("ab")) << log.all();
}

TEST_F(RdmaRailReturn, PortThatSaysThatItIsDownIsLeftAtOnce) {
  start(ifTold, FallbackPolicy::kForbid);
  const Traffic traffic(bothWays());
  fabric.setPort("nic0b", 0, IBV_PORT_DOWN);
  ASSERT_TRUE(bothGoByNics("a")) << log.all();
  EXPECT_GT(log.count("nic0b:1: its port went down"), 0U) << log.all();
  EXPECT_EQ(log.count("nic0b:1: IBV_WC_RETRY_EXC"), 0U) << log.all();
  fabric.setPort("nic0b", 0, IBV_PORT_ACTIVE);
  ASSERT_TRUE(bothGoByNics("ab")) << log.all();
}

} // namespace
} // namespace dlslime::testing
