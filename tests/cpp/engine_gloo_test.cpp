// Engines that take the last route, and the policies about it.
#include <gtest/gtest.h>

#include <thread>

#include "core/at_end.h"
#include "core/random.h"
#include "engine/route.h"
#include "fakes/cluster.h"
#include "fakes/initiator.h"
#include "fakes/log_capture.h"
#include "fakes/memory_carriers.h"

namespace dlslime::testing {
namespace {

using Carriers = std::shared_ptr<MemoryCarriers>;

Cluster::Options by(
    const Carriers& carriers,
    RoutePolicy route = RoutePolicy::kAuto,
    FallbackPolicy fallback = FallbackPolicy::kWarn) {
  return [=](GroupOptions& options) {
    options.carrierSource = carriers;
    options.route = route;
    options.fallback = fallback;
    options.timeout = milliseconds(5000);
  };
}

// Rank `which` can't share memory; -1: nobody can.
std::function<Config(int)> without(int which = -1) {
  return [which](int rank) {
    Config config;
    config.shm = which != -1 && rank != which;
    config.rdma.enabled = false; // also where there is a NIC
    return config;
  };
}

class EngineGloo : public ::testing::Test {
 protected:
  ~EngineGloo() override {
    carriers->release();
  }
  LogCapture log;
  Carriers carriers = std::make_shared<MemoryCarriers>();
};

TEST_F(EngineGloo, MessagesOfAllSizesArriveInBothDirections) {
  Cluster world(2, without(), by(carriers));
  for (const size_t size : {0, 1, 8000, 70000, 1 << 20, (9 << 20) + 13}) {
    ASSERT_TRUE(world.passes(0, 1, size)) << size;
    ASSERT_TRUE(world.passes(1, 0, size)) << size;
  }
  const auto report = world[0].engine->report(*world[0].group);
  EXPECT_EQ(report.at(0).route, "gloo");
  EXPECT_EQ(report.at(0).copy, "frames");
}

TEST_F(EngineGloo, FallbackIsToldOnceWithItsReason) {
  Cluster world(2, without(), by(carriers));
  ASSERT_TRUE(world.passes(0, 1));
  const auto told = log.count("go by Gloo");
  EXPECT_GE(told, 1U);
  EXPECT_LE(told, 2U) << "each process may say it"; // both are here
  EXPECT_EQ(log.count("DLSLIME_SHM=off"), told) << log.all();
  const auto first = world.join(0, "more");
  const auto second = world.join(1, "more");
  ASSERT_TRUE(world.passes(0, first, 1, second));
  ASSERT_TRUE(world.passes(1, second, 0, first));
  EXPECT_EQ(log.count("go by Gloo"), told) << log.all();
}

TEST_F(EngineGloo, AllowedFallbackIsSilent) {
  Cluster world(
      2, without(), by(carriers, RoutePolicy::kAuto, FallbackPolicy::kAllow));
  ASSERT_TRUE(world.passes(0, 1));
  EXPECT_EQ(log.count(""), 0U) << log.all();
}

TEST_F(EngineGloo, ForbiddenFallbackFailsWithTheReason) {
  Cluster world(
      2, without(), by(carriers, RoutePolicy::kAuto, FallbackPolicy::kForbid));
  const auto send = world[0].send(1, 1, pattern(8));
  const auto receive = world[1].receive(0, 1, 8);
  for (const auto& [rank, operation] : {std::pair(0, send), {1, receive}}) {
    ASSERT_TRUE(world[rank].wait(operation));
    EXPECT_EQ(operation->status().code(), ErrorCode::kUnavailable);
    const auto& text = operation->status().message();
    EXPECT_NE(text.find("DLSLIME_FALLBACK"), std::string::npos) << text;
    EXPECT_NE(text.find("DLSLIME_SHM"), std::string::npos) << text;
  }
  EXPECT_EQ(carriers->made(), 0);
}

// Where only one end has no shared memory the other learns it by being told.
TEST_F(EngineGloo, RefusedRouteFallsBackNamingThePeersReason) {
  for (const int refusing : {0, 1}) {
    Cluster world(2, without(refusing), by(carriers));
    ASSERT_TRUE(world.passes(0, 1)) << "refusing " << refusing;
    const auto report = world[0].engine->explain(
        *world[0].group, 1, deadlineAfter(milliseconds(5000)));
    EXPECT_EQ(report.route, "gloo");
    const auto why = describeRejected(report.rejected);
    EXPECT_NE(why.find("shm: "), std::string::npos) << why;
    EXPECT_NE(why.find("DLSLIME_SHM"), std::string::npos) << why;
  }
}

TEST_F(EngineGloo, ForcedRouteIsTakenSilently) {
  Cluster world(2, Config{}, by(carriers, RoutePolicy::kGloo));
  ASSERT_TRUE(world.passes(0, 1, 3 << 20));
  EXPECT_EQ(log.count(""), 0U) << log.all();
  const auto report = world[0].engine->report(*world[0].group);
  EXPECT_EQ(report.at(0).route, "gloo");
}

TEST_F(EngineGloo, ForcedRouteThatDoesNotWorkFailsInsteadOfFallingBack) {
  Cluster world(2, without(), by(carriers, RoutePolicy::kShm));
  const auto send = world[0].send(1, 1, pattern(8));
  ASSERT_TRUE(world[0].wait(send));
  EXPECT_EQ(send->status().code(), ErrorCode::kUnavailable);
  EXPECT_EQ(carriers->made(), 0);
}

TEST_F(EngineGloo, GroupsOfOtherPoliciesHaveTheirOwnConnection) {
  auto route = RoutePolicy::kAuto;
  Cluster world(2, Config{}, [&](GroupOptions& options) {
    options.carrierSource = carriers;
    options.route = route;
  });
  ASSERT_TRUE(world.passes(0, 1));
  route = RoutePolicy::kGloo;
  const auto first = world.join(0, "slow");
  const auto second = world.join(1, "slow");
  ASSERT_TRUE(world.passes(0, first, 1, second));
  EXPECT_EQ(world[0].engine->connections(), 2U);
  EXPECT_EQ(world[0].engine->report(*world[0].group).at(0).route, "shm");
  EXPECT_EQ(world[0].engine->report(*first).at(0).route, "gloo");
}

TEST_F(EngineGloo, WithoutAnySourceOfCarriersTheReasonIsGiven) {
  Cluster world(2, without(), by(nullptr));
  const auto send = world[0].send(1, 1, pattern(8));
  ASSERT_TRUE(world[0].wait(send));
  EXPECT_FALSE(send->status().ok());
  EXPECT_NE(send->status().message().find("Gloo"), std::string::npos)
      << send->status().message();
}

// Its process has the same engine, so that its record of an earlier life leads
// there, before the group that brings Gloo is there again.
TEST_F(EngineGloo, RankThatComesLateToTheNextLifeIsWaitedFor) {
  for (const auto route : {RoutePolicy::kAuto, RoutePolicy::kGloo}) {
    Cluster world(2, without(), by(carriers, route));
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

TEST_F(EngineGloo, AnySourceTakesFromBothRoutes) {
  Cluster world(3, without(2), by(carriers));
  constexpr int kEach = 50;
  for (int i = 0; i < kEach; ++i) {
    world[1].send(0, 4, pattern(i % 7 == 0 ? 200000 : 8, 1));
    world[2].send(0, 4, pattern(i % 7 == 0 ? 200000 : 8, 2));
  }
  int from[3] = {};
  for (int i = 0; i < 2 * kEach; ++i) {
    const auto receive = world[0].receive(Operation::kAnySource, 4, 200000);
    ASSERT_TRUE(world[0].wait(receive));
    ASSERT_TRUE(receive->status().ok()) << receive->status().message();
    ++from[receive->source()];
  }
  EXPECT_EQ(from[1], kEach);
  EXPECT_EQ(from[2], kEach);
}

TEST_F(EngineGloo, LargeMessagesBothWaysAtOnceDoNotBlockEachOther) {
  Cluster world(2, without(), by(carriers));
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

TEST_F(EngineGloo, FloodOfUnexpectedMessagesArrives) {
  Cluster world(2, without(), by(carriers));
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

TEST_F(EngineGloo, SendsThatWentWellOutliveTheirSender) {
  for (const bool connectedBefore : {true, false}) {
    Cluster world(2, without(), by(carriers));
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

TEST_F(EngineGloo, BrokenCarrierEndsEverythingWithItsText) {
  CarrierFaults faults;
  faults.breakAfterSends = 40;
  carriers = std::make_shared<MemoryCarriers>(faults);
  Cluster world(2, without(), by(carriers));
  std::vector<std::pair<int, BufferPtr>> all;
  for (int i = 0; i < 20; ++i) {
    all.emplace_back(0, world[0].send(1, 1, pattern(300000)));
    all.emplace_back(1, world[1].receive(0, 1, 300000));
  }
  int failed = 0;
  for (const auto& [rank, operation] : all) {
    ASSERT_TRUE(world[rank].wait(operation)) << operation->describe();
    failed += !operation->status().ok();
  }
  EXPECT_GT(failed, 0);
}

// Long before the group's time-out: the end that failed closes its socket.
TEST_F(EngineGloo, CarrierThatCantBeMadeFailsBothEndsSoon) {
  for (const int failing : {0, 1}) {
    CarrierFaults faults;
    faults.failingMake = failing;
    const auto bad = std::make_shared<MemoryCarriers>(faults);
    Cluster world(2, without(), [&](GroupOptions& options) {
      options.carrierSource = bad;
    });
    const auto send = world[0].send(1, 1, pattern(300000));
    const auto receive = world[1].receive(0, 1, 300000);
    EXPECT_TRUE(world[0].wait(send)) << "end " << failing << " has failed";
    EXPECT_TRUE(world[1].wait(receive)) << "end " << failing << " has failed";
    bad->release();
  }
}

TEST_F(EngineGloo, EngineEndsThoughThePeerNeverMakesItsCarrier) {
  CarrierFaults faults;
  faults.hangingMake = 1;
  carriers = std::make_shared<MemoryCarriers>(faults);
  const auto start = Clock::now();
  {
    Cluster world(2, without(), by(carriers));
    const auto send = world[0].send(1, 1, pattern(300000));
    const auto receive = world[1].receive(0, 1, 300000);
    EXPECT_TRUE(eventually([&] { return carriers->making() == 2; }));
  }
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(30));
}

TEST_F(EngineGloo, TruncatedMessageFailsItselfOnly) {
  Cluster world(2, without(), by(carriers));
  const auto send = world[0].send(1, 1, pattern(500000));
  const auto receive = world[1].receive(0, 1, 1000);
  ASSERT_TRUE(world[1].wait(receive));
  ASSERT_TRUE(world[0].wait(send));
  EXPECT_EQ(receive->status().code(), ErrorCode::kTruncated);
  EXPECT_EQ(send->status().code(), ErrorCode::kTruncated);
  EXPECT_TRUE(world.passes(0, 1, 500000));
}

// Wait for the second socket, as what sets Gloo up does.
class WaitingCarriers final : public gloo::CarrierSource {
 public:
  std::unique_ptr<gloo::Carrier> make(
      const std::string& /*nonce*/,
      int /*end*/,
      const OpenSideSocket& side) override {
    ++begun;
    const AtEnd over([this] { ++ended; });
    side(deadlineAfter(milliseconds(60000)));
    throw Error(ErrorCode::kTransportFailed, "nobody should come");
  }
  std::atomic<int> begun{0}, ended{0};
};

// A member may come again and again: each time a thread would wait for it.
TEST_F(EngineGloo, HandshakesThatComeToNothingLeaveNoThreads) {
  constexpr int kTimes = 30;
  const auto waiting = std::make_shared<WaitingCarriers>();
  Cluster world(2, without(), [&](GroupOptions& options) {
    options.carrierSource = waiting;
    options.route = RoutePolicy::kGloo;
  });
  const auto record =
      decodeAddress(*world.rendezvous("first")->tryGet(addressKey(0)));
  const auto self = randomBytes(kInstanceBytes);
  std::vector<Initiator> all;
  for (int i = 0; i < kTimes; ++i) {
    auto& peer =
        all.emplace_back(ControlSocket::connectTo(record.socketName), record);
    peer.greeting.self = peer.hello.self.instance = self;
    peer.greeting.policy = RoutePolicy::kGloo;
    peer.hello.route = "gloo";
    peer.hello.nonce = std::to_string(i);
    const auto welcome = peer.ask();
    ASSERT_TRUE(welcome) << i;
    ASSERT_EQ(welcome->verdict, Verdict::kAccepted) << welcome->text;
  }
  EXPECT_TRUE(eventually([&] {
    return waiting->begun == kTimes && waiting->ended == kTimes - 1;
  })) << waiting->ended
      << " of " << waiting->begun << " have ended";
}

} // namespace
} // namespace dlslime::testing
