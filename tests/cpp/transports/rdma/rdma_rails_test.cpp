// Connections over several NICs and several queue pairs.
#include <gtest/gtest.h>

#include <cerrno>
#include <random>
#include <thread>

#include "fakes/verbs/rdma_pair.h"

namespace dlslime::testing {
namespace {

constexpr auto kRead = IBV_WR_RDMA_READ;
constexpr auto kMessage = IBV_WR_RDMA_WRITE_WITH_IMM;

class RdmaRails : public RdmaPair {
 protected:
  explicit RdmaRails(std::vector<FakeDevice> devices = twoNetworks())
      : RdmaPair(std::move(devices)) {}
  // `first` and `second` are the hosts' values of DLSLIME_NICS.
  void start(
      const char* first = "nic0",
      const char* second = "nic1",
      int queuePairs = 1) {
    const std::string nics[] = {first, second};
    RdmaPair::start([nics, queuePairs](Config& config, int rank) {
      config.rdma.nics = nics[rank];
      config.rdma.queuePairs = queuePairs;
    });
  }
  // Returns the network of the rail for messages: the first rail of the
  // initiator.
  char network() {
    return fabric.requests("nic0a", kMessage) >
            fabric.requests("nic0b", kMessage)
        ? 'a'
        : 'b';
  }
  static char otherThan(char network) {
    return network == 'a' ? 'b' : 'a';
  }
};

class RdmaFastRail : public RdmaRails {
 protected:
  RdmaFastRail() : RdmaRails(devices()) {}
  static std::vector<FakeDevice> devices() {
    auto all = twoNetworks();
    for (auto& device : all) {
      if (device.name.back() == 'a') {
        device.ports[0].speed = 128; // NDR
      }
    }
    return all;
  }
};

TEST_F(RdmaRails, LargeMessagesGoByAllNicsAndSmallOnesByOne) {
  start();
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(world->passes(0, 1, 5000));
  }
  const std::string host = "nic0";
  EXPECT_GE(fabric.requests(host + network(), kMessage), 20U);
  EXPECT_LE(fabric.requests(host + otherThan(network()), kMessage), 1U)
      << "more than a greeting";
  ASSERT_TRUE(world->passes(0, 1, (16 << 20) + 7));
  ASSERT_TRUE(world->passes(1, 0, (16 << 20) + 7));
  for (const char* nic : {"nic0a", "nic0b", "nic1a", "nic1b"}) {
    EXPECT_GE(fabric.requests(nic, kRead), 16U) << nic;
  }
}

TEST_F(RdmaRails, NicsOfOneNetworkFindEachOther) {
  start();
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(world->passes(0, 1, 5000));
    ASSERT_TRUE(world->passes(1, 0, 5000));
  }
  const std::string peer = "nic1";
  EXPECT_GE(fabric.requests(peer + network(), kMessage), 20U);
  EXPECT_LE(fabric.requests(peer + otherThan(network()), kMessage), 1U);
}

TEST_F(RdmaRails, SlowerNicTakesLess) {
  start();
  const auto fastBefore = fabric.requests("nic1a", kRead);
  const auto slowBefore = fabric.requests("nic1b", kRead);
  fabric.slow("nic1a", 2);
  fabric.slow("nic1b", 8);
  ASSERT_TRUE(world->passes(0, 1, 64 << 20));
  const auto fast = fabric.requests("nic1a", kRead) - fastBefore;
  const auto slow = fabric.requests("nic1b", kRead) - slowBefore;
  EXPECT_EQ(fast + slow, 256U);
  EXPECT_GT(fast, slow * 3 / 2);
  EXPECT_GT(slow, 20U);
}

// 400 Gb/s beside 200 Gb/s: a message of six parts, all posted before the first
// ends.
TEST_F(RdmaFastRail, NicOfTwiceTheSpeedTakesTwiceAsMuch) {
  start();
  const auto fastBefore = fabric.requests("nic1a", kRead);
  const auto slowBefore = fabric.requests("nic1b", kRead);
  constexpr size_t kParts = 6, kPartBytes = 256 * 1024;
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(world->passes(0, 1, kParts * kPartBytes));
  }
  const auto fast = fabric.requests("nic1a", kRead) - fastBefore;
  const auto slow = fabric.requests("nic1b", kRead) - slowBefore;
  EXPECT_EQ(fast + slow, 20 * kParts);
  EXPECT_NEAR(double(fast), 2 * double(slow), 12) << fast << " and " << slow;
}

class RdmaRailDies : public RdmaRails,
                     public ::testing::WithParamInterface<const char*> {};

TEST_P(RdmaRailDies, AndTheOtherGoesOn) {
  start();
  const std::string dying = GetParam();
  const std::string reader = "nic1" + dying.substr(4);
  fabric.hold(reader, 256 * 1024);
  const auto before = fabric.requests(reader, kRead);
  const auto receive = (*world)[1].receive(0, 3, 8 << 20);
  const auto send = (*world)[0].send(1, 3, pattern(8 << 20));
  ASSERT_TRUE(
      eventually([&] { return fabric.requests(reader, kRead) > before; }));
  fabric.cut(dying);
  fabric.release(reader);
  ASSERT_TRUE((*world)[1].wait(receive));
  ASSERT_TRUE(receive->status().ok()) << receive->status().message();
  EXPECT_EQ(receive->buffer(), send->buffer());
  ASSERT_TRUE((*world)[0].wait(send));
  EXPECT_TRUE(send->status().ok()) << send->status().message();
  for (const int rank : {0, 1}) {
    ASSERT_TRUE(world->passes(rank, 1 - rank, 1 << 20));
    EXPECT_GE(replaced(rank), 1U);
    EXPECT_EQ(
        devices(rank),
        "nic" + std::to_string(rank) + otherThan(dying.back()) + ":1");
  }
}
INSTANTIATE_TEST_SUITE_P(
    Nics,
    RdmaRailDies,
    ::testing::Values("nic0a", "nic0b", "nic1a", "nic1b"),
    [](const auto& instance) { return std::string(instance.param); });

TEST_F(RdmaRails, PortThatIsDownIsLeftOut) {
  fabric.setPort("nic0a", 0, IBV_PORT_DOWN);
  start();
  EXPECT_EQ(devices(0), "nic0b:1");
  EXPECT_EQ(devices(1), "nic1b:1");
  ASSERT_TRUE(world->passes(0, 1, 4 << 20));
}

struct Refusal {
  const char* nic;
  ibv_qp_state state;
};
class RdmaRailRefused : public RdmaRails,
                        public ::testing::WithParamInterface<Refusal> {};

TEST_P(RdmaRailRefused, AndTheOtherIsUsed) {
  const std::string nic = GetParam().nic;
  fabric.refusePairs(nic, GetParam().state, ETIMEDOUT);
  start();
  for (const int rank : {0, 1}) {
    ASSERT_TRUE(world->passes(rank, 1 - rank, 100));
    ASSERT_TRUE(world->passes(rank, 1 - rank, 9 << 20));
    EXPECT_EQ(
        devices(rank),
        "nic" + std::to_string(rank) + otherThan(nic.back()) + ":1");
  }
}
INSTANTIATE_TEST_SUITE_P(
    Nics,
    RdmaRailRefused,
    ::testing::Values(
        Refusal{"nic0a", IBV_QPS_RESET},
        Refusal{"nic1b", IBV_QPS_RESET},
        Refusal{"nic0b", IBV_QPS_INIT},
        Refusal{"nic0a", IBV_QPS_RTR},
        Refusal{"nic0b", IBV_QPS_RTS},
        Refusal{"nic1a", IBV_QPS_RTR},
        Refusal{"nic1b", IBV_QPS_RTS}),
    [](const auto& instance) {
      return std::string(instance.param.nic) + "State" +
          std::to_string(instance.param.state);
    });

TEST_F(RdmaRails, QueueThatFailsIsLeftAtOnce) {
  start();
  fabric.tell("nic0a", IBV_EVENT_CQ_ERR);
  ASSERT_TRUE(eventually([&] { return replaced(0) > 0 && replaced(1) > 0; }));
  EXPECT_GT(
      log.count("is lost (RDMA by nic0a:1: a completion queue has failed"), 0U)
      << log.all();
  EXPECT_EQ(route(0), "rdma");
  ASSERT_TRUE(world->passes(0, 1, 4 << 20));
}

TEST_F(RdmaRails, LackOfDescriptorsIsWaitedOut) {
  fabric.failOpening("nic0b", EMFILE);
  std::thread closing([&] {
    std::this_thread::sleep_for(milliseconds(300));
    fabric.failOpening("nic0b", 0);
  });
  start();
  closing.join();
  EXPECT_EQ(route(0), "rdma");
  EXPECT_NE(devices(0).find("nic0b:1"), std::string::npos) << devices(0);
}

// Messages of all sizes in both directions at once, over 1 to 4 rails that
// overtake each other at random.
class RdmaRailsInAnyOrder : public RdmaRails,
                            public ::testing::WithParamInterface<int> {};

TEST_P(RdmaRailsInAnyOrder, MessagesArriveWholeAndInTheirs) {
  const bool alone = GetParam() % 2 == 0;
  start(alone ? "nic0a" : "nic0", alone ? "nic1a" : "nic1", 1 + GetParam() / 2);
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    fabric.reorder(seed, 40);
    std::mt19937_64 random(seed);
    struct Message {
      int from;
      std::shared_ptr<BufferOperation> send, receive;
    };
    std::vector<Message> messages;
    for (unsigned i = 0; i < 60; ++i) {
      const int from = static_cast<int>(random() % 2);
      const size_t most = size_t{1} << (3 + random() % 21);
      const size_t size = most - random() % (most / 2);
      const auto post = [&](bool sends) {
        auto& node = (*world)[sends ? from : 1 - from];
        return sends ? node.send(1 - from, 3, pattern(size, i))
                     : node.receive(from, 3, size);
      };
      const bool sendsFirst = random() % 2 == 0;
      const auto one = post(sendsFirst), other = post(!sendsFirst);
      messages.push_back(
          {from, sendsFirst ? one : other, sendsFirst ? other : one});
    }
    for (const auto& [from, send, receive] : messages) {
      ASSERT_TRUE((*world)[1 - from].wait(receive)) << seed;
      ASSERT_TRUE(receive->status().ok()) << receive->status().message();
      ASSERT_TRUE((*world)[from].wait(send));
      ASSERT_EQ(receive->buffer(), send->buffer()) << seed;
    }
  }
  EXPECT_EQ(replaced(0), 0U);
}

INSTANTIATE_TEST_SUITE_P(Rails, RdmaRailsInAnyOrder, ::testing::Range(0, 4));

TEST_F(RdmaRails, WithoutAnyThereIsTcp) {
  fabric.refusePairs("nic0a", IBV_QPS_RTR, ETIMEDOUT);
  fabric.refusePairs("nic0b", IBV_QPS_RTR, EINVAL);
  start();
  ASSERT_TRUE(world->passes(0, 1, 4 << 20));
  EXPECT_EQ(route(0), "tcp");
  std::string why;
  for (const auto& rejected : report(0).rejected) {
    why += rejected.reason;
  }
  for (const auto* path :
       {"GID 0 (10.9.0.1) of nic0a:1 to GID 10.9.0.2 of the peer",
        "GID 0 (10.10.0.1) of nic0b:1 to GID 10.10.0.2 of the peer"}) {
    EXPECT_NE(
        why.find(std::string("a queue pair to RTR, from ") + path),
        std::string::npos)
        << why;
  }
  EXPECT_NE(why.find("DLSLIME_GID_INDEX"), std::string::npos) << why;
}

struct Counts {
  const char *first, *second; // DLSLIME_NICS
  int queuePairs;
  const char *used, *peers; // NICs, sorted
  int rails;
};
class RdmaRailCounts : public RdmaRails,
                       public ::testing::WithParamInterface<Counts> {
 protected:
  // Returns the names of the NICs without ports.
  std::string nicsOf(int rank) {
    std::string names;
    for (const char letter : {'a', 'b'}) {
      const auto name = "nic" + std::to_string(rank) + letter;
      if (devices(rank).find(name) != std::string::npos) {
        names += (names.empty() ? "" : " ") + name;
      }
    }
    return names;
  }
};

TEST_P(RdmaRailCounts, EndsMayHaveDifferentNumbersOfNics) {
  const auto& counts = GetParam();
  start(counts.first, counts.second, counts.queuePairs);
  for (const size_t size : {100, 100000, 600000, 9 << 20}) {
    ASSERT_TRUE(world->passes(0, 1, size)) << size;
    ASSERT_TRUE(world->passes(1, 0, size)) << size;
  }
  EXPECT_EQ(route(0), "rdma") << log.all();
  EXPECT_EQ(nicsOf(0), counts.used);
  EXPECT_EQ(nicsOf(1), counts.peers);
  EXPECT_TRUE(eventually([&] {
    return fabric.live()["qp"] == 2 * counts.rails;
  })) << fabric.live()["qp"];
}
INSTANTIATE_TEST_SUITE_P(
    Nics,
    RdmaRailCounts,
    ::testing::Values(
        Counts{"nic0", "nic1a", 1, "nic0a", "nic1a", 1},
        Counts{"nic0b", "nic1", 1, "nic0b", "nic1b", 1},
        Counts{"nic0a", "nic1b", 1, "nic0a", "nic1b", 1},
        Counts{"nic0", "nic1", 1, "nic0a nic0b", "nic1a nic1b", 2},
        Counts{"nic0", "nic1", 3, "nic0a nic0b", "nic1a nic1b", 6},
        Counts{"nic0", "nic1", 4, "nic0a nic0b", "nic1a nic1b", 8},
        Counts{"nic0", "nic1", 128, "nic0a nic0b", "nic1a nic1b", 8},
        Counts{"nic0a", "nic1a", 3, "nic0a", "nic1a", 3},
        Counts{"nic0a", "nic1a", 128, "nic0a", "nic1a", 8}),
    [](const auto& instance) {
      return std::string(instance.param.first) + instance.param.second +
          std::to_string(instance.param.queuePairs);
    });

} // namespace
} // namespace dlslime::testing
