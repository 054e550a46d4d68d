// Waiting: on many threads, with time-outs, during aborts, and with stuck
// peers.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <random>
#include <thread>

#include "fakes/cluster.h"

namespace dlslime::testing {
namespace {

double cpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) +
        static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

class EngineWait : public ::testing::TestWithParam<bool> {
 protected:
  static Config config() {
    Config made;
    made.crossMemoryAttach = GetParam();
    return made;
  }
};

TEST_P(EngineWait, EightThreadsWaitEachForTheirOwn) {
  Cluster world(2, config());
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 8; ++thread) {
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&world, rank, thread] {
        const auto tag = static_cast<uint32_t>(thread);
        const size_t size = thread % 2 == 0 ? 16 : 1500000;
        for (int i = 0; i < 10; ++i) {
          const auto receive = world[rank].receive(1 - rank, tag, size);
          const auto send = world[rank].send(1 - rank, tag, pattern(size));
          ASSERT_TRUE(world[rank].wait(receive)) << "a wake-up was lost";
          ASSERT_TRUE(world[rank].wait(send)) << "a wake-up was lost";
          ASSERT_EQ(receive->buffer(), send->buffer());
        }
      });
    }
  }
  for (auto& thread : threads) {
    thread.join();
  }
}

// A thread waits for a large message, while a second thread polls and may do
// all the work; the second thread's own message comes only after the first has
// returned.
TEST_P(EngineWait, WaiterWakesWhenAnotherOneDoesItsWork) {
  Cluster world(2, config());
  for (int round = 0; round < 60; ++round) {
    const auto large = world[1].receive(0, 1, 4 << 20);
    const auto small = world[1].receive(0, 2, 8);
    std::thread other([&] { ASSERT_TRUE(world[1].wait(small)); });
    std::thread sender([&] {
      const auto send = world[0].send(1, 1, pattern(4 << 20));
      ASSERT_TRUE(world[0].wait(send));
    });
    EXPECT_TRUE(world[1].wait(large, 10)) << "round " << round;
    world[0].send(1, 2, pattern(8));
    other.join();
    sender.join();
  }
}

TEST_P(EngineWait, SeveralThreadsWaitForOneOperation) {
  Cluster world(2, config());
  for (int round = 0; round < 20; ++round) {
    const auto receive = world[1].receive(0, 1, 300000);
    std::vector<std::thread> waiters;
    for (int i = 0; i < 8; ++i) {
      waiters.emplace_back([&] {
        EXPECT_TRUE(world[1].wait(receive));
        EXPECT_TRUE(receive->status().ok());
      });
    }
    const auto send = world[0].send(1, 1, pattern(300000));
    for (auto& waiter : waiters) {
      waiter.join();
    }
    ASSERT_TRUE(world[0].wait(send));
  }
}

TEST_P(EngineWait, SomeTimeOutWhileOthersArrive) {
  Cluster world(2, config());
  std::atomic<int> late{0};
  std::vector<std::thread> waiters;
  for (uint32_t thread = 0; thread < 8; ++thread) {
    waiters.emplace_back([&, thread] {
      const bool never = thread % 2 == 0;
      for (int i = 0; i < 10; ++i) {
        const auto receive = world[1].receive(0, thread, 100000);
        const auto deadline = deadlineAfter(milliseconds(never ? 10 : 20000));
        if (world[1].engine->wait(*receive, deadline)) {
          EXPECT_FALSE(never);
          continue;
        }
        EXPECT_TRUE(never) << "a message was not seen";
        ++late;
        world[1].engine->cancel(
            *world[1].group, receive, Status(ErrorCode::kTimeout, "late"));
        EXPECT_TRUE(world[1].wait(receive));
      }
    });
  }
  for (int i = 0; i < 10; ++i) {
    for (const uint32_t tag : {1, 3, 5, 7}) {
      const auto send = world[0].send(1, tag, pattern(100000));
      EXPECT_TRUE(world[0].wait(send));
    }
  }
  for (auto& waiter : waiters) {
    waiter.join();
  }
  EXPECT_EQ(late, 40);
}

TEST_P(EngineWait, AbortWakesAllWaiters) {
  Cluster world(2, config());
  ASSERT_TRUE(world.passes(0, 1));
  std::vector<std::thread> waiters;
  std::atomic<int> cancelled{0};
  for (uint32_t i = 0; i < 8; ++i) {
    waiters.emplace_back([&, i] {
      const auto operation = i % 2 == 0
          ? world[0].receive(i == 0 ? Operation::kAnySource : 1, i, 8)
          : world[0].send(1, i, pattern(1 << 20));
      EXPECT_TRUE(world[0].wait(operation));
      cancelled += operation->status().message() == "enough" ||
          operation->status().message().find("enough") != std::string::npos;
    });
  }
  std::this_thread::sleep_for(milliseconds(50));
  world[0].engine->abort(
      *world[0].group, Status(ErrorCode::kCancelled, "enough"));
  for (auto& waiter : waiters) {
    waiter.join();
  }
  EXPECT_EQ(cancelled, 8);
  const auto refused = world[0].receive(1, 0, 8);
  ASSERT_TRUE(refused->done());
  EXPECT_EQ(refused->status().code(), ErrorCode::kCancelled);
}

TEST_P(EngineWait, LeavingThePeerWakesAllWaiters) {
  Cluster world(2, config());
  ASSERT_TRUE(world.passes(0, 1));
  std::vector<std::thread> waiters;
  for (uint32_t i = 0; i < 6; ++i) {
    waiters.emplace_back([&, i] {
      const auto receive = world[0].receive(1, i, 8);
      EXPECT_TRUE(world[0].wait(receive));
      EXPECT_EQ(receive->status().code(), ErrorCode::kPeerFailed);
      EXPECT_NE(receive->status().message().find("rank 1"), std::string::npos)
          << receive->status().message();
    });
  }
  std::this_thread::sleep_for(milliseconds(30));
  world.stop(1);
  for (auto& waiter : waiters) {
    waiter.join();
  }
}

TEST_P(EngineWait, CallbackRunsWithoutAWaitingThread) {
  Cluster world(2, config());
  for (const size_t size : {8, 5 << 20}) {
    std::atomic<int> calls{0};
    const auto receive = world[1].receive(0, 1, size);
    receive->onDone([&] { ++calls; });
    const auto send = world[0].send(1, 1, pattern(size));
    send->onDone([&] { ++calls; });
    EXPECT_TRUE(eventually([&] { return calls == 2; }));
  }
}

TEST_P(EngineWait, CallbackMayPostTheNextOperation) {
  Cluster world(2, config());
  std::atomic<int> left{50};
  std::function<void()> next = [&] {
    if (--left > 0) {
      const auto receive = world[1].receive(0, 1, 8);
      receive->onDone(next);
    }
  };
  const auto first = world[1].receive(0, 1, 8);
  first->onDone(next);
  for (int i = 0; i < 50; ++i) {
    world[0].send(1, 1, pattern(8));
  }
  EXPECT_TRUE(eventually([&] { return left == 0; }));
}

TEST_P(EngineWait, PollingWithoutWaitingCompletesEverything) {
  Cluster world(2, config());
  for (const size_t size : {8, 70000, 3 << 20}) {
    const auto receive = world[1].receive(0, 1, size);
    const auto send = world[0].send(1, 1, pattern(size));
    const auto deadline = deadlineAfter(milliseconds(20000));
    while (!(receive->done() && send->done()) && Clock::now() < deadline) {
      world[0].engine->poke();
      world[1].engine->poke();
    }
    ASSERT_TRUE(receive->done() && send->done());
    EXPECT_EQ(receive->buffer(), send->buffer());
  }
}

// The dead rank's record is of the current life of the group, so no newer
// record can be expected.
TEST(EngineDeaths, RankThatEndsBeforeItIsConnectedIsFoundDeadAtOnce) {
  Cluster world(2);
  world.stop(1);
  const auto send = world[0].send(1, 1, pattern(8));
  ASSERT_TRUE(world[0].wait(send, 30)); // and not after a minute
  EXPECT_EQ(send->status().code(), ErrorCode::kPeerFailed);
  EXPECT_NE(
      send->status().message().find("its process has ended"), std::string::npos)
      << send->status().message();
}

// A thread that looks only once must not take the last news from sleeping
// threads.
TEST_P(EngineWait, SingleLooksLoseNoWakeUp) {
  Cluster world(2, config());
  std::mt19937 random(3);
  for (int round = 0; round < 60; ++round) {
    const auto receive = world[1].receive(0, 1, 4 << 20);
    const auto send = world[0].send(1, 1, pattern(4 << 20));
    std::thread looker([&, pause = random() % 1500] {
      std::this_thread::sleep_for(microseconds(pause));
      world[1].engine->poke();
    });
    EXPECT_TRUE(world[1].wait(receive, 10)) << "round " << round;
    EXPECT_TRUE(world[0].wait(send, 10)) << "round " << round;
    looker.join();
  }
}

TEST_P(EngineWait, IdleEnginesUseNoProcessorTime) {
  Cluster world(3, config());
  ASSERT_TRUE(world.passes(0, 1, 2 << 20));
  ASSERT_TRUE(world.passes(1, 2));
  const auto pending = world[0].receive(1, 5, 8);
  std::thread waiter([&] { // waits all the time
    world[0].engine->wait(*pending, deadlineAfter(milliseconds(600)));
  });
  std::this_thread::sleep_for(milliseconds(100));
  const double before = cpuSeconds();
  std::this_thread::sleep_for(milliseconds(300));
  EXPECT_LT(cpuSeconds() - before, 0.06) << "of 0.3 s";
  waiter.join();
}

TEST_P(EngineWait, WaitWithAPassedDeadlineReturnsAtOnce) {
  Cluster world(2, config());
  const auto receive = world[1].receive(0, 1, 8);
  const auto start = Clock::now();
  EXPECT_FALSE(world[1].engine->wait(*receive, start - milliseconds(1)));
  EXPECT_LT(Clock::now() - start, milliseconds(5000));
}

INSTANTIATE_TEST_SUITE_P(
    Copies,
    EngineWait,
    ::testing::Values(true, false),
    [](const auto& instance) {
      return std::string(instance.param ? "Attached" : "Staged");
    });

} // namespace
} // namespace dlslime::testing
