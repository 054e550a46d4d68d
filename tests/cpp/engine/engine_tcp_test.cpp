// Engines that use the last route, TCP, and the policies for using TCP.
#include <gtest/gtest.h>

#include <filesystem>

#include "base/random.h"
#include "engine/bootstrap/address_directory.h"
#include "engine/bootstrap/wire_records.h"
#include "engine/connect/route.h"
#include "engine/endpoint.h"
#include "fakes/cluster.h"
#include "fakes/log_capture.h"
#include "fakes/memory_carriers.h"
#include "fakes/peers/initiator.h"
#include "transports/tcp/tcp_connection.h"

namespace dlslime::testing {
namespace {

Cluster::Options by(
    RoutePolicy route = RoutePolicy::kAuto,
    FallbackPolicy fallback = FallbackPolicy::kWarn) {
  return [=](GroupOptions& options) {
    options.route = route;
    options.fallback = fallback;
    options.timeout = milliseconds(20000);
  };
}

// Keeps rank `which` from sharing memory; -1: all ranks.
std::function<Config(int)> without(int which = -1) {
  return [which](int rank) {
    Config config;
    config.shm = which != -1 && rank != which;
    config.rdma.enabled = false; // even if there is a NIC
    return config;
  };
}

class EngineTcp : public ::testing::Test {
 protected:
  LogCapture log;
};

TEST_F(EngineTcp, FallbackIsToldOnceWithItsReason) {
  Cluster world(2, without(), by());
  ASSERT_TRUE(world.passes(0, 1));
  const auto told = log.count("go over TCP");
  EXPECT_GE(told, 1U);
  EXPECT_LE(told, 2U) << "each process may say it"; // one engine each
  EXPECT_EQ(log.count("DLSLIME_SHM=off"), told) << log.all();
  const auto first = world.join(0, "more");
  const auto second = world.join(1, "more");
  ASSERT_TRUE(world.passes(0, first, 1, second));
  ASSERT_TRUE(world.passes(1, second, 0, first));
  EXPECT_EQ(log.count("go over TCP"), told) << log.all();
}

TEST_F(EngineTcp, AllowedFallbackIsSilent) {
  Cluster world(2, without(), by(RoutePolicy::kAuto, FallbackPolicy::kAllow));
  ASSERT_TRUE(world.passes(0, 1));
  EXPECT_EQ(log.count(""), 0U) << log.all();
}

TEST_F(EngineTcp, ForbiddenFallbackFailsWithTheReason) {
  Cluster world(2, without(), by(RoutePolicy::kAuto, FallbackPolicy::kForbid));
  const auto send = world[0].send(1, 1, pattern(8));
  const auto receive = world[1].receive(0, 1, 8);
  for (const auto& [rank, operation] : {std::pair(0, send), {1, receive}}) {
    ASSERT_TRUE(world[rank].wait(operation));
    EXPECT_EQ(operation->status().code(), ErrorCode::kUnavailable);
    const auto& text = operation->status().message();
    EXPECT_NE(text.find("DLSLIME_FALLBACK"), std::string::npos) << text;
    EXPECT_NE(text.find("DLSLIME_SHM"), std::string::npos) << text;
  }
}

// If only one end lacks shared memory, the peer must be told.
TEST_F(EngineTcp, RefusedRouteFallsBackNamingThePeersReason) {
  for (const int refusing : {0, 1}) {
    Cluster world(2, without(refusing), by());
    ASSERT_TRUE(world.passes(0, 1)) << "refusing " << refusing;
    const auto report = world[0].engine->explain(
        *world[0].group, 1, deadlineAfter(milliseconds(20000)));
    EXPECT_EQ(report.route, "tcp");
    const auto why = describeRejected(report.rejected);
    EXPECT_NE(why.find("shm: "), std::string::npos) << why;
    EXPECT_NE(why.find("DLSLIME_SHM"), std::string::npos) << why;
  }
}

TEST_F(EngineTcp, ForcedRouteThatDoesNotWorkFailsInsteadOfFallingBack) {
  Cluster world(2, without(), by(RoutePolicy::kShm));
  const auto send = world[0].send(1, 1, pattern(8));
  ASSERT_TRUE(world[0].wait(send));
  EXPECT_EQ(send->status().code(), ErrorCode::kUnavailable);
}

TEST_F(EngineTcp, AnySourceTakesFromBothRoutes) {
  Cluster world(3, without(2), by());
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

// TCP needs nothing from the group, so the group's carriers for Gloo stay
// unused.
TEST_F(EngineTcp, IsTakenInFrontOfGloo) {
  const auto carriers = std::make_shared<MemoryCarriers>();
  Cluster world(2, without(), [&](GroupOptions& options) {
    options.carrierSource = carriers;
  });
  ASSERT_TRUE(world.passes(0, 1));
  EXPECT_EQ(world[0].engine->report(*world[0].group).at(0).route, "tcp");
  EXPECT_EQ(carriers->made(), 0);
}

size_t threads() {
  const std::filesystem::directory_iterator all("/proc/self/task");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

// A member may begin handshakes without end, each with a waiting thread.
TEST_F(EngineTcp, HandshakesThatComeToNothingLeaveNoThreads) {
  constexpr int kTimes = 30;
  Cluster world(2, without(), by(RoutePolicy::kTcp));
  const auto record =
      decodeAddress(*world.rendezvous("first")->tryGet(addressKey(0)));
  const auto self = randomBytes(kInstanceBytes);
  const auto before = threads();
  std::vector<Initiator> all;
  for (int i = 0; i < kTimes; ++i) {
    auto& peer =
        all.emplace_back(ControlSocket::connectTo(record.socketName), record);
    peer.greeting.self = peer.hello.self.instance = self;
    peer.greeting.policy = RoutePolicy::kTcp;
    peer.hello.route = "tcp";
    peer.hello.nonce = std::to_string(i);
    const auto welcome = peer.ask();
    ASSERT_TRUE(welcome) << i;
    ASSERT_EQ(welcome->verdict, Verdict::kAccepted) << welcome->text;
  }
  EXPECT_TRUE(eventually([&] { return threads() <= before + 1; }))
      << threads() << " threads, and before " << before;
}

// Ending must not wait until the peer's time to open the socket is over.
TEST_F(EngineTcp, EngineEndsThoughThePeerNeverOpensItsSocket) {
  const auto start = Clock::now();
  {
    Cluster world(2, without(), by(RoutePolicy::kTcp));
    const auto record =
        decodeAddress(*world.rendezvous("first")->tryGet(addressKey(0)));
    Initiator peer(ControlSocket::connectTo(record.socketName), record);
    peer.greeting.policy = RoutePolicy::kTcp;
    peer.hello.route = "tcp";
    const auto welcome = peer.ask();
    ASSERT_TRUE(welcome);
    ASSERT_EQ(welcome->verdict, Verdict::kAccepted) << welcome->text;
    peer.confirm({peer.hello.nonce, {}, ""});
  }
  EXPECT_LT(Clock::now() - start, tcp::TcpConnection::kOpenTime);
}

// Where TCP is the last route, no connection is made to carry the news.
TEST_F(EngineTcp, EndpointThatHasClosedBeforeIsKnownBeforeTheTimeOut) {
  const auto here = std::make_shared<Engine>(without()(0));
  const auto there = std::make_shared<Engine>(without()(1));
  Endpoint::Options options;
  options.timeout = milliseconds(60000);
  Endpoint one(here, options), peer(there, options);
  one.connect(peer.address());
  peer.leave();
  const auto receive = makeReceive(one.peer(), 1, 8);
  here->receive(*one.group(), receive);
  ASSERT_TRUE(here->wait(*receive, deadlineAfter(milliseconds(10000))));
  const auto& why = receive->status();
  EXPECT_EQ(why.code(), ErrorCode::kPeerFailed) << why.message();
  EXPECT_NE(why.message().find("has been closed"), std::string::npos)
      << why.message();
}

// The refusal must tell nothing about groups.
TEST_F(EngineTcp, StrangerWithoutAGroupIsNotConnected) {
  Cluster world(2, without(), by(RoutePolicy::kTcp));
  const auto record =
      decodeAddress(*world.rendezvous("first")->tryGet(addressKey(0)));
  Initiator peer(ControlSocket::connectTo(record.socketName), record);
  peer.greeting.policy = RoutePolicy::kAuto;
  peer.hello.route = "tcp";
  peer.hello.group = record.group + 100;
  const auto welcome = peer.ask();
  ASSERT_TRUE(welcome);
  EXPECT_EQ(welcome->verdict, Verdict::kNotJoined) << welcome->text;
}

} // namespace
} // namespace dlslime::testing
