// Groups: joining, leaving, coming back, and the connections below.
#include <gtest/gtest.h>

#include <thread>

#include "engine/bootstrap/address_directory.h"
#include "fakes/cluster.h"
#include "fakes/log_capture.h"
#include "fakes/status_of.h"

namespace dlslime::testing {
namespace {

TEST(EngineGroups, ManyGroupsShareOneConnection) {
  Cluster world(3);
  ASSERT_TRUE(world.passes(0, 1));
  ASSERT_TRUE(world.passes(1, 0));
  const auto before = world[0].engine->connections();
  EXPECT_EQ(before, 1U);
  for (int i = 0; i < 10; ++i) {
    const auto name = "group " + std::to_string(i);
    const auto first = world.join(0, name);
    const auto second = world.join(1, name);
    EXPECT_TRUE(world.passes(0, first, 1, second, 200000));
    EXPECT_TRUE(world.passes(1, second, 0, first));
  }
  EXPECT_EQ(world[0].engine->connections(), before);
  EXPECT_EQ(world[0].engine->groups(), 11U);
}

TEST(EngineGroups, EqualTagsOfSeveralGroupsDoNotMeet) {
  Cluster world(2);
  const auto first = world.join(0, "more");
  const auto second = world.join(1, "more");
  const auto wrong = world[1].receive(0, 5, 8);
  const auto right = makeReceive(0, 5, 8);
  world[1].engine->receive(*second, right);
  const auto send = makeSend(1, 5, pattern(8));
  world[0].engine->send(*first, send);
  EXPECT_TRUE(world[1].wait(right));
  EXPECT_FALSE(wrong->done());
}

TEST(EngineGroups, ConnectingFromBothSidesAtOnceMakesOneConnection) {
  for (int round = 0; round < 60; ++round) {
    Cluster world(2);
    std::vector<std::thread> threads;
    for (const int rank : {0, 1}) {
      threads.emplace_back([&world, rank] {
        const auto receive = world[rank].receive(1 - rank, 1, 8);
        const auto send = world[rank].send(1 - rank, 1, pattern(8));
        ASSERT_TRUE(world[rank].wait(receive)) << receive->describe();
        ASSERT_TRUE(receive->status().ok()) << receive->status().message();
        ASSERT_TRUE(world[rank].wait(send));
      });
    }
    for (auto& thread : threads) {
      thread.join();
    }
    EXPECT_EQ(world[0].engine->connections(), 1U) << "round " << round;
    EXPECT_EQ(world[1].engine->connections(), 1U) << "round " << round;
  }
}

TEST(EngineGroups, FirstMessageComesEachTime) {
  for (int round = 0; round < 5; ++round) {
    Cluster world(2);
    ASSERT_TRUE(world.passes(0, 1)) << round;
  }
}

TEST(EngineGroups, RankThatJoinsLateIsFound) {
  Cluster world(2);
  auto first = world.join(0, "late");
  const auto send = makeSend(1, 1, pattern(8));
  world[0].engine->send(*first, send);
  std::this_thread::sleep_for(milliseconds(200));
  EXPECT_FALSE(send->done());
  auto second = world.join(1, "late");
  const auto receive = makeReceive(0, 1, 8);
  world[1].engine->receive(*second, receive);
  EXPECT_TRUE(world[1].wait(receive));
  EXPECT_TRUE(world[0].wait(send));
}

TEST(EngineGroups, LeavingAndJoiningAgainWorksManyTimes) {
  Cluster world(2);
  for (int life = 0; life < 20; ++life) {
    auto first = world.join(0, "lives");
    auto second = world.join(1, "lives");
    ASSERT_TRUE(world.passes(0, first, 1, second)) << "life " << life;
    ASSERT_TRUE(world.passes(1, second, 0, first, 300000));
    world.leave(life % 2, life % 2 == 0 ? first : second);
    world.leave(1 - life % 2, life % 2 == 0 ? second : first);
  }
  EXPECT_EQ(world[0].engine->groups(), 1U);
  EXPECT_EQ(world[0].engine->connections(), 1U);
}

TEST(EngineGroups, RankThatComesBackLateMeetsTheNewLifeOnly) {
  Cluster world(2);
  for (int life = 0; life < 5; ++life) {
    auto first = world.join(0, "lives");
    auto second = world.join(1, "lives");
    ASSERT_TRUE(world.passes(0, first, 1, second));
    world.leave(0, first);
    first = world.join(0, "lives");
    // Rank 1 is still in the old life, where no message may go.
    const auto send = makeSend(1, 1, pattern(300000, 9));
    world[0].engine->send(*first, send);
    std::this_thread::sleep_for(milliseconds(60));
    EXPECT_FALSE(send->done());
    const auto stale = makeReceive(0, 1, 300000);
    world[1].engine->receive(*second, stale);
    EXPECT_TRUE(world[1].wait(stale));
    EXPECT_EQ(stale->status().code(), ErrorCode::kPeerFailed);
    world.leave(1, second);
    second = world.join(1, "lives");
    const auto receive = makeReceive(0, 1, 300000);
    world[1].engine->receive(*second, receive);
    ASSERT_TRUE(world[1].wait(receive)) << "life " << life;
    ASSERT_TRUE(receive->status().ok()) << receive->status().message();
    EXPECT_EQ(receive->buffer(), pattern(300000, 9));
    ASSERT_TRUE(world[0].wait(send));
    world.leave(0, first);
    world.leave(1, second);
  }
}

TEST(EngineGroups, EnginesThatStartAgainFindEachOther) {
  Cluster world(2);
  ASSERT_TRUE(world.passes(0, 1));
  for (int life = 0; life < 10; ++life) {
    world.stop(0);
    world.stop(1);
    world.start(0);
    world.start(1);
    world[0].group = world.join(0, "first");
    world[1].group = world.join(1, "first");
    ASSERT_TRUE(world.passes(0, 1)) << "life " << life;
    ASSERT_TRUE(world.passes(1, 0, 300000)) << "life " << life;
  }
}

// A further group keeps the engine of rank 1 alive; rank 0 gets a new engine.
TEST(EngineGroups, NewEngineMeetsAnEngineThatLivedOn) {
  Cluster world(2);
  ASSERT_TRUE(world.passes(0, 1));
  const auto other = world.join(1, "keeps the engine of rank 1");
  world.stop(0);
  world.leave(1, world[1].group);
  world.start(0);
  world[0].group = world.join(0, "first");
  world[1].group = world.join(1, "first");
  ASSERT_TRUE(world.passes(0, 1)) << "they are in the same life of the group";
  EXPECT_TRUE(world.passes(1, 0));
}

TEST(EngineGroups, OneEngineThatEndsLeavesTheOtherPairsAlone) {
  Cluster world(3);
  ASSERT_TRUE(world.passes(0, 1));
  ASSERT_TRUE(world.passes(0, 2));
  ASSERT_TRUE(world.passes(2, 1));
  const auto doomed = world[0].receive(2, 1, 8);
  const auto fine = world[0].receive(1, 1, 8);
  world.stop(2);
  ASSERT_TRUE(world[0].wait(doomed));
  EXPECT_EQ(doomed->status().code(), ErrorCode::kPeerFailed);
  EXPECT_FALSE(fine->done());
  world[1].send(0, 1, pattern(8));
  EXPECT_TRUE(world[0].wait(fine));
  EXPECT_TRUE(fine->status().ok());
  EXPECT_TRUE(world.passes(0, 1, 2 << 20));
}

TEST(EngineGroups, EngineEndsWhileItsPeersAreBusy) {
  for (int round = 0; round < 15; ++round) {
    Cluster world(3);
    std::atomic<bool> stop{false};
    std::vector<std::thread> busy;
    for (const int rank : {0, 1}) {
      busy.emplace_back([&, rank] {
        const int peers[] = {1 - rank, 2};
        for (uint32_t i = 0; !stop; ++i) {
          const size_t size = i % 3 == 0 ? 2 << 20 : 1000;
          std::vector<BufferPtr> operations;
          for (const int peer : peers) {
            operations.push_back(world[rank].send(peer, 1, pattern(size)));
            operations.push_back(world[rank].receive(peer, 1, 2 << 20));
          }
          for (const auto& operation : operations) {
            if (operation->peer() == 2) {
              EXPECT_TRUE(world[rank].wait(operation));
            }
          }
          for (const auto& operation : operations) {
            ASSERT_TRUE(world[rank].wait(operation));
            if (operation->peer() != 2) {
              // In the end, a rank aborts before its peer.
              ASSERT_TRUE(operation->status().ok() || stop)
                  << operation->status().message();
            }
          }
        }
      });
    }
    for (int i = 0; i < 3; ++i) {
      for (const int peer : {0, 1}) {
        world[2].receive(peer, 1, 2 << 20);
        world[2].send(peer, 1, pattern(2 << 20));
      }
    }
    std::this_thread::sleep_for(milliseconds(2 + round));
    world.stop(2);
    std::this_thread::sleep_for(milliseconds(20));
    stop = true;
    // The ranks may be in different rounds: abort() frees a rank that still
    // waits.
    std::this_thread::sleep_for(milliseconds(20));
    for (const int rank : {0, 1}) {
      world[rank].engine->abort(
          *world[rank].group, Status(ErrorCode::kCancelled, "over"));
    }
    for (auto& thread : busy) {
      thread.join();
    }
  }
}

TEST(EngineGroups, PeerThatNeverComesTimesOutByTheGroupsTime) {
  Cluster world(2, Config{}, [](GroupOptions& options) {
    options.timeout = milliseconds(300);
  });
  const auto group = world.join(0, "alone");
  const auto send = makeSend(1, 1, pattern(8));
  const auto receive = makeReceive(1, 1, 8);
  world[0].engine->send(*group, send);
  world[0].engine->receive(*group, receive);
  ASSERT_TRUE(world[0].wait(send));
  ASSERT_TRUE(world[0].wait(receive));
  for (const auto& operation : {send, receive}) {
    EXPECT_EQ(operation->status().code(), ErrorCode::kTimeout);
    EXPECT_NE(operation->status().message().find("rank 1"), std::string::npos)
        << operation->status().message();
  }
}

class ThrowingRendezvous final : public Rendezvous {
 public:
  void set(const std::string& /*key*/, const Bytes& /*value*/) override {
    throw Error(ErrorCode::kUnavailable, "the store is gone");
  }
  std::optional<Bytes> tryGet(const std::string& /*key*/) override {
    throw Error(ErrorCode::kUnavailable, "the store is gone");
  }
  uint64_t increment(const std::string& /*key*/) override {
    return 1;
  }
};

TEST(EngineGroups, JoinThatFailsThrowsAndLeavesNoGroup) {
  Cluster world(2);
  GroupOptions options;
  options.size = 2;
  options.rendezvous = std::make_shared<ThrowingRendezvous>();
  EXPECT_THROW(world[0].engine->join(options), Error);
  EXPECT_EQ(world[0].engine->groups(), 1U);
}

TEST(EngineGroups, RecordsOfNonsenseAreToldAsSuch) {
  Cluster world(2);
  world.rendezvous("bad")->set(addressKey(1), pattern(77));
  const auto group = world.join(0, "bad");
  const auto send = makeSend(1, 1, pattern(8));
  world[0].engine->send(*group, send);
  ASSERT_TRUE(world[0].wait(send));
  EXPECT_FALSE(send->status().ok());
  EXPECT_NE(send->status().message().find("not of dlslime"), std::string::npos)
      << send->status().message();
}

TEST(EngineGroups, ExplainConnectsAndNamesTheRoute) {
  Cluster world(2);
  const auto report = world[0].engine->explain(
      *world[0].group, 1, deadlineAfter(milliseconds(20000)));
  EXPECT_EQ(report.route, "shm");
  EXPECT_EQ(report.copy, "cma");
  EXPECT_EQ(report.peer.pid, static_cast<uint32_t>(getpid()));
  const auto self = world[0].engine->explain(
      *world[0].group, 0, deadlineAfter(milliseconds(20000)));
  EXPECT_EQ(self.route, "self");
  EXPECT_EQ(self.copy, "memcpy");
}

TEST(EngineGroups, ExplainOfARankThatIsNotThereGivesUp) {
  Cluster world(2);
  const auto group = world.join(0, "alone");
  EXPECT_THROW(
      world[0].engine->explain(*group, 1, deadlineAfter(milliseconds(50))),
      Error);
  // Once it has been looked for, the text has the problem, too.
  const auto why = [&] {
    return statusOf([&] {
      world[0].engine->explain(*group, 1, deadlineAfter(milliseconds(50)));
    });
  };
  EXPECT_TRUE(eventually([&] {
    return mentions(
        why(), "has not been reached in time: its address is not in the store");
  })) << why().message();
}

TEST(EngineGroups, PendingOperationsAreDescribed) {
  Cluster world(2);
  const auto group = world[0].group;
  EXPECT_EQ(world[0].engine->describePending(*group, 10), "nothing");
  world[0].receive(1, 7, 100);
  world[0].send(1, 8, pattern(1 << 20));
  world[0].receive(Operation::kAnySource, 9, 100);
  const auto text = world[0].engine->describePending(*group, 10);
  EXPECT_NE(text.find("recv from rank 1 tag 7"), std::string::npos) << text;
  EXPECT_NE(text.find("send to rank 1 tag 8"), std::string::npos) << text;
  EXPECT_NE(text.find("any source tag 9"), std::string::npos) << text;
  const auto less = world[0].engine->describePending(*group, 1);
  EXPECT_NE(less.find("2 more"), std::string::npos) << less;
}

} // namespace
} // namespace dlslime::testing
