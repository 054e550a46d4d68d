// Engines whose messages all go in frames of a stream: over TCP and over Gloo.
#include <gtest/gtest.h>

#include <thread>

#include "fakes/cluster.h"
#include "fakes/log_capture.h"
#include "fakes/memory_carriers.h"

namespace dlslime::testing {
namespace {

struct FramesWay {
  const char* name;
  const char* route;
  RoutePolicy policy;
};
void PrintTo(const FramesWay& way, std::ostream* out) {
  *out << way.name;
}

class EngineFrames : public ::testing::TestWithParam<FramesWay> {
 protected:
  ~EngineFrames() override {
    carriers->release();
  }
  Cluster::Options forced() const {
    return by(GetParam().policy);
  }
  Cluster::Options by(RoutePolicy policy) const {
    return [source = carriers, policy](GroupOptions& options) {
      options.carrierSource = source;
      options.route = policy;
      options.timeout = milliseconds(20000);
    };
  }

  LogCapture log;
  std::shared_ptr<MemoryCarriers> carriers = std::make_shared<MemoryCarriers>();
};

TEST_P(EngineFrames, MessagesOfAllSizesArriveInBothDirections) {
  Cluster world(2, Config{}, forced());
  for (const size_t size : {0, 1, 8000, 70000, 1 << 20, (9 << 20) + 13}) {
    ASSERT_TRUE(world.passes(0, 1, size)) << size;
    ASSERT_TRUE(world.passes(1, 0, size)) << size;
  }
  const auto report = world[0].engine->report(*world[0].group);
  EXPECT_EQ(report.at(0).route, GetParam().route);
  EXPECT_EQ(report.at(0).copy, "frames");
}

TEST_P(EngineFrames, ForcedRouteIsTakenSilently) {
  Cluster world(2, Config{}, forced());
  ASSERT_TRUE(world.passes(0, 1, 3 << 20));
  EXPECT_EQ(log.count(""), 0U) << log.all();
  const auto report = world[0].engine->report(*world[0].group);
  EXPECT_EQ(report.at(0).route, GetParam().route);
}

TEST_P(EngineFrames, GroupsOfOtherPoliciesHaveTheirOwnConnection) {
  auto route = RoutePolicy::kAuto;
  Cluster world(2, Config{}, [&](GroupOptions& options) {
    options.carrierSource = carriers;
    options.route = route;
  });
  ASSERT_TRUE(world.passes(0, 1));
  route = GetParam().policy;
  const auto first = world.join(0, "slow");
  const auto second = world.join(1, "slow");
  ASSERT_TRUE(world.passes(0, first, 1, second));
  EXPECT_EQ(world[0].engine->connections(), 2U);
  EXPECT_EQ(world[0].engine->report(*world[0].group).at(0).route, "shm");
  EXPECT_EQ(world[0].engine->report(*first).at(0).route, GetParam().route);
}

// Rank 1 keeps its engine, so the record of an earlier life leads to the engine
// before rank 1 has joined again.
TEST_P(EngineFrames, RankThatComesLateToTheNextLifeIsWaitedFor) {
  for (const auto route : {RoutePolicy::kAuto, GetParam().policy}) {
    Cluster world(
        2,
        [](int /*rank*/) {
          Config config;
          config.shm = false;
          config.rdma.enabled = false; // even if there is a NIC
          return config;
        },
        by(route));
    ASSERT_TRUE(world.passes(0, 1));
    world.leave(1, world[1].group);
    world.stop(0);
    world.start(0);
    world[0].group = world.join(0, "first");
    const auto receive = world[0].receive(1, 1, 8);
    EXPECT_FALSE(
        world[0].engine->wait(*receive, deadlineAfter(milliseconds(300))));
    world[1].group = world.join(1, "first");
    world[1].send(0, 1, pattern(8));
    ASSERT_TRUE(world[0].wait(receive));
    EXPECT_TRUE(receive->status().ok()) << receive->status().message();
  }
}

TEST_P(EngineFrames, LargeMessagesBothWaysAtOnceDoNotBlockEachOther) {
  Cluster world(2, Config{}, forced());
  std::vector<BufferPtr> operations[2];
  for (int i = 0; i < 3; ++i) {
    for (const int rank : {0, 1}) {
      operations[rank].push_back(
          world[rank].send(1 - rank, 1, pattern(12 << 20)));
      operations[rank].push_back(world[rank].receive(1 - rank, 1, 12 << 20));
    }
  }
  for (const int rank : {0, 1}) {
    for (const auto& operation : operations[rank]) {
      ASSERT_TRUE(world[rank].wait(operation)) << operation->describe();
      ASSERT_TRUE(operation->status().ok());
    }
  }
}

TEST_P(EngineFrames, FloodOfUnexpectedMessagesArrives) {
  Cluster world(2, Config{}, forced());
  std::vector<BufferPtr> sends;
  for (int i = 0; i < 1000; ++i) {
    sends.push_back(world[0].send(1, 1, pattern(50000, unsigned(i))));
  }
  for (int i = 0; i < 1000; ++i) {
    const auto receive = world[1].receive(0, 1, 50000);
    ASSERT_TRUE(world[1].wait(receive)) << i;
    ASSERT_EQ(receive->buffer(), pattern(50000, unsigned(i)));
  }
  for (const auto& send : sends) {
    ASSERT_TRUE(world[0].wait(send));
  }
}

TEST_P(EngineFrames, SendsThatWentWellOutliveTheirSender) {
  for (const bool connectedBefore : {true, false}) {
    Cluster world(2, Config{}, forced());
    if (connectedBefore) {
      ASSERT_TRUE(world.passes(0, 1));
    }
    std::vector<BufferPtr> sends;
    for (unsigned i = 0; i < 20; ++i) {
      sends.push_back(world[0].send(1, 1, pattern(1000, i)));
    }
    for (const auto& send : sends) {
      ASSERT_TRUE(world[0].wait(send));
      ASSERT_TRUE(send->status().ok());
    }
    world.stop(0);
    for (unsigned i = 0; i < 20; ++i) {
      const auto receive = world[1].receive(0, 1, 1000);
      ASSERT_TRUE(world[1].wait(receive)) << i;
      ASSERT_TRUE(receive->status().ok())
          << i << ": " << receive->status().message();
      ASSERT_EQ(receive->buffer(), pattern(1000, i));
    }
  }
}

TEST_P(EngineFrames, TruncatedMessageFailsItselfOnly) {
  Cluster world(2, Config{}, forced());
  const auto send = world[0].send(1, 1, pattern(500000));
  const auto receive = world[1].receive(0, 1, 1000);
  ASSERT_TRUE(world[1].wait(receive));
  ASSERT_TRUE(world[0].wait(send));
  EXPECT_EQ(receive->status().code(), ErrorCode::kTruncated);
  EXPECT_EQ(send->status().code(), ErrorCode::kTruncated);
  EXPECT_TRUE(world.passes(0, 1, 500000));
}

TEST_P(EngineFrames, WaitersSleepAndAreWoken) {
  Cluster world(2, Config{}, forced());
  ASSERT_TRUE(world.passes(0, 1));
  for (const size_t size : {8, 1 << 20}) {
    const auto receive = world[1].receive(0, 1, size);
    std::thread waiter([&] { EXPECT_TRUE(world[1].wait(receive)); });
    std::this_thread::sleep_for(milliseconds(20)); // asleep by then
    const auto send = world[0].send(1, 1, pattern(size));
    waiter.join();
    EXPECT_EQ(receive->buffer(), send->buffer());
    EXPECT_TRUE(world[0].wait(send));
  }
}

TEST_P(EngineFrames, OperationsCompleteWithoutAWaitingThread) {
  Cluster world(2, Config{}, forced());
  const auto receive = world[1].receive(0, 1, 1 << 22);
  const auto send = world[0].send(1, 1, pattern(1 << 22));
  EXPECT_TRUE(eventually([&] { return receive->done() && send->done(); }));
  EXPECT_EQ(receive->buffer(), send->buffer());
}

TEST_P(EngineFrames, ThreadsOfBothEndsPostAtOnce) {
  Cluster world(2, Config{}, forced());
  std::vector<std::thread> threads;
  for (uint32_t tag = 0; tag < 4; ++tag) {
    threads.emplace_back([&, tag] {
      const int rank = static_cast<int>(tag) % 2;
      for (int i = 0; i < 50; ++i) {
        const size_t size = i % 10 == 0 ? 300000 : 3000;
        const auto receive = world[1 - rank].receive(rank, tag, size);
        const auto send = world[rank].send(1 - rank, tag, pattern(size, tag));
        ASSERT_TRUE(world[1 - rank].wait(receive));
        ASSERT_TRUE(world[rank].wait(send));
        ASSERT_EQ(receive->buffer(), send->buffer());
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
}

TEST_P(EngineFrames, EachOfSeveralPeersIsHeard) {
  constexpr int kRanks = 5;
  Cluster world(kRanks, Config{}, forced());
  for (int round = 0; round < 20; ++round) {
    std::vector<std::pair<int, BufferPtr>> all;
    for (int from = 0; from < kRanks; ++from) {
      for (int to = 0; to < kRanks; ++to) {
        if (from != to) {
          all.emplace_back(to, world[to].receive(from, 1, 2000));
          all.emplace_back(from, world[from].send(to, 1, pattern(2000)));
        }
      }
    }
    for (const auto& [rank, operation] : all) {
      ASSERT_TRUE(world[rank].wait(operation)) << operation->describe();
      ASSERT_TRUE(operation->status().ok());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Ways,
    EngineFrames,
    ::testing::Values(
        FramesWay{"Tcp", "tcp", RoutePolicy::kTcp},
        FramesWay{"Gloo", "gloo", RoutePolicy::kGloo}),
    [](const auto& instance) { return std::string(instance.param.name); });

} // namespace
} // namespace dlslime::testing
