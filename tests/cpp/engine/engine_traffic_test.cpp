// Engines under random traffic, several threads each.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <thread>

#include "fakes/cluster.h"

namespace dlslime::testing {
namespace {

constexpr int kAny = Operation::kAnySource;

struct Shape {
  const char* name;
  int size;
  Config config;
};
void PrintTo(const Shape& shape, std::ostream* out) {
  *out << shape.name;
}

const Shape kShapes[] = {
    {"Two", 2, {}},
    {"Three", 3, {}},
    {"Four", 4, {}},
    {"Five", 5, {}},
    {"ThreeStaged", 3, with([](Config& config) {
       config.crossMemoryAttach = false;
     })},
    {"ThreeSmallestRing", 3, with([](Config& config) {
       config.ringBytes = 16 * 1024;
     })},
    {"ThreeStagedSmallestRing", 3, with([](Config& config) {
       config.ringBytes = 16 * 1024;
       config.crossMemoryAttach = false;
     })},
    {"ThreeNeverSpinning", 3, with([](Config& config) {
       config.spin = microseconds(0);
     })},
    {"ThreeNeverEager", 3, with([](Config& config) {
       config.eagerLimitBytes = 0;
     })},
    {"ThreeFewUnexpected", 3, with([](Config& config) {
       config.unexpectedLimitBytes = 100000;
     })},
};

// Size of a lane's n-th message, known to both ends.
size_t sizeOf(int from, int to, int thread, int number) {
  std::mt19937 random(static_cast<unsigned>(
      from * 1000003 + to * 10007 + thread * 101 + number));
  switch (random() % 12) {
    case 0:
      return 0;
    case 1:
      return 200000 + random() % 1000000;
    case 2:
      return 3000000 + random() % 100000;
    case 3:
    case 4:
      return 60000 + random() % 10000;
    default:
      return random() % 4000;
  }
}
Bytes contentOf(int from, int to, int thread, int number) {
  return pattern(
      sizeOf(from, to, thread, number),
      static_cast<unsigned>(from * 7 + to * 3 + thread + number));
}

class EngineTraffic : public ::testing::TestWithParam<Shape> {
 protected:
  static constexpr int kThreads = 3;
  static constexpr int kRounds = 12;

  // All ranks exchange messages, in windows of random size, posted in random
  // order.
  void exchange(World& world, int rank, int thread) {
    std::mt19937 random(static_cast<unsigned>(rank * 31 + thread));
    const int size = GetParam().size;
    for (int done = 0; done < kRounds;) {
      const int window = std::min<int>(1 + random() % 5, kRounds - done);
      std::vector<BufferPtr> receives;
      std::vector<BufferPtr> sends;
      const bool receivesFirst = random() % 2 == 0;
      for (int half = 0; half < 2; ++half) {
        for (int i = done; i < done + window; ++i) {
          for (int peer = 0; peer < size; ++peer) {
            const auto tag = static_cast<uint32_t>(thread);
            if ((half == 0) == receivesFirst) {
              receives.push_back(world[rank].receive(
                  peer, tag, sizeOf(peer, rank, thread, i) + random() % 3));
            } else {
              sends.push_back(world[rank].send(
                  peer, tag, contentOf(rank, peer, thread, i)));
            }
          }
        }
      }
      check(world, rank, thread, done, receives);
      for (const auto& send : sends) {
        ASSERT_TRUE(world[rank].wait(send)) << send->describe();
        ASSERT_TRUE(send->status().ok()) << send->status().message();
      }
      done += window;
    }
  }
  void check(
      World& world,
      int rank,
      int thread,
      int first,
      const std::vector<BufferPtr>& receives) {
    const auto size = static_cast<size_t>(GetParam().size);
    for (size_t i = 0; i < receives.size(); ++i) {
      const auto& receive = receives[i];
      const int peer = static_cast<int>(i % size);
      const int number = first + static_cast<int>(i / size);
      ASSERT_TRUE(world[rank].wait(receive)) << receive->describe();
      ASSERT_TRUE(receive->status().ok()) << receive->status().message();
      EXPECT_EQ(receive->source(), peer);
      Bytes got = receive->buffer();
      got.resize(receive->bytes());
      ASSERT_TRUE(sameBytes(got, contentOf(peer, rank, thread, number)))
          << receive->describe() << " number " << number;
    }
  }
};

TEST_P(EngineTraffic, AllPairsFromSeveralThreadsArriveInOrder) {
  World world(GetParam().size, GetParam().config);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < GetParam().size; ++rank) {
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back(
          [&world, rank, thread, this] { exchange(world, rank, thread); });
    }
  }
  for (auto& thread : threads) {
    thread.join();
  }
  for (int rank = 0; rank < GetParam().size; ++rank) {
    EXPECT_EQ(
        world[rank].engine->connections(),
        static_cast<size_t>(GetParam().size));
    for (const auto& peer : world[rank].engine->report(*world[rank].group)) {
      EXPECT_EQ(peer.counters.sentMessages, kThreads * kRounds);
      EXPECT_EQ(peer.counters.receivedMessages, kThreads * kRounds);
      EXPECT_EQ(peer.pendingSends, 0U);
      EXPECT_EQ(peer.pendingReceives, 0U);
    }
  }
}

TEST_P(EngineTraffic, AnySourceTakesEachMessageOnceInOrderOfItsSender) {
  constexpr int kEach = 200;
  World world(GetParam().size, GetParam().config);
  std::vector<std::thread> senders;
  for (int rank = 1; rank < GetParam().size; ++rank) {
    senders.emplace_back([&, rank] {
      std::vector<BufferPtr> sends;
      for (int i = 0; i < kEach; ++i) {
        Bytes bytes = pattern(i % 20 == 0 ? 100000 : 8);
        std::memcpy(bytes.data(), &i, sizeof(i));
        sends.push_back(world[rank].send(0, 9, std::move(bytes)));
      }
      for (const auto& send : sends) {
        EXPECT_TRUE(world[rank].wait(send));
      }
    });
  }
  std::vector<int> next(static_cast<size_t>(GetParam().size));
  for (int i = 0; i < kEach * (GetParam().size - 1); ++i) {
    const auto receive = world[0].receive(kAny, 9, 100000);
    ASSERT_TRUE(world[0].wait(receive)) << "message " << i;
    ASSERT_TRUE(receive->status().ok()) << receive->status().message();
    int number = -1;
    std::memcpy(&number, receive->buffer().data(), sizeof(number));
    ASSERT_EQ(number, next.at(static_cast<size_t>(receive->source()))++);
  }
  for (auto& sender : senders) {
    sender.join();
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes,
    EngineTraffic,
    ::testing::ValuesIn(kShapes),
    [](const auto& instance) { return std::string(instance.param.name); });

TEST(EngineOneSided, OnlyOneEndMayCopyBetweenTheProcesses) {
  for (const int denied : {0, 1}) {
    Cluster world(2, [denied](int rank) {
      Config config;
      config.crossMemoryAttach = rank != denied;
      return config;
    });
    for (const int from : {0, 1}) {
      std::vector<BufferPtr> sends;
      std::vector<BufferPtr> receives;
      for (unsigned i = 0; i < 12; ++i) { // more than there are desks
        sends.push_back(
            world[from].send(1 - from, 1, pattern((3 << 20) + i, i)));
        receives.push_back(world[1 - from].receive(from, 1, (3 << 20) + i));
      }
      for (size_t i = 0; i < sends.size(); ++i) {
        ASSERT_TRUE(world[1 - from].wait(receives[i]))
            << "denied at " << denied << ", sent by " << from;
        ASSERT_TRUE(world[from].wait(sends[i]));
        EXPECT_EQ(receives[i]->buffer(), sends[i]->buffer());
      }
    }
  }
}

} // namespace
} // namespace dlslime::testing
