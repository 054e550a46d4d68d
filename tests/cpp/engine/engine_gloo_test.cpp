// Engines told to use Gloo, and failures of Gloo.
#include <gtest/gtest.h>

#include <thread>

#include "base/at_end.h"
#include "base/random.h"
#include "engine/bootstrap/address_directory.h"
#include "engine/bootstrap/wire_records.h"
#include "engine/endpoint.h"
#include "engine/hub.h"
#include "fakes/cluster.h"
#include "fakes/log_capture.h"
#include "fakes/memory_carriers.h"
#include "fakes/peers/initiator.h"

namespace dlslime::testing {
namespace {

using Carriers = std::shared_ptr<MemoryCarriers>;

Cluster::Options by(const Carriers& carriers) {
  return [=](GroupOptions& options) {
    options.carrierSource = carriers;
    options.route = RoutePolicy::kGloo;
    options.timeout = milliseconds(20000);
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

TEST_F(EngineGloo, WithoutAnySourceOfCarriersTheReasonIsGiven) {
  Cluster world(2, Config{}, by(nullptr));
  const auto send = world[0].send(1, 1, pattern(8));
  ASSERT_TRUE(world[0].wait(send));
  EXPECT_FALSE(send->status().ok());
  EXPECT_NE(send->status().message().find("Gloo"), std::string::npos)
      << send->status().message();
}

// Endpoints of two processes over Gloo. Their first connection needs a group of
// the acceptor, so no connection carries the news that an endpoint has closed.
class EngineGlooEndpoints : public EngineGloo {
 protected:
  void expectClosed(Endpoint& endpoint) const {
    const auto send = makeSend(endpoint.peer(), 1, pattern(8));
    here->send(*endpoint.group(), send);
    ASSERT_TRUE(here->wait(*send, deadlineAfter(milliseconds(10000))));
    const auto& why = send->status();
    EXPECT_EQ(why.code(), ErrorCode::kPeerFailed) << why.message();
    EXPECT_NE(why.message().find("has been closed"), std::string::npos)
        << why.message();
  }
  Endpoint::Options options() const {
    Endpoint::Options options;
    options.route = RoutePolicy::kGloo;
    options.carrierSource = carriers;
    options.timeout = milliseconds(60000);
    return options;
  }
  std::shared_ptr<Engine> here = std::make_shared<Engine>(Config{});
  std::shared_ptr<Engine> there = std::make_shared<Engine>(Config{});
};

TEST_F(EngineGlooEndpoints, PeerThatHasClosedIsKnownBeforeTheTimeOut) {
  Endpoint one(here, options()), two(here, options()), peer(there, options());
  Hub hub(there, options());
  one.connect(peer.address());
  two.connect(hub.address());
  peer.leave();
  hub.leave();
  expectClosed(one);
  expectClosed(two);
}

TEST_F(EngineGlooEndpoints, OtherPeersOfTheProcessAreNotTakenForClosed) {
  for (int i = 0; i < 20; ++i) {
    Endpoint one(here, options()), two(here, options());
    Endpoint closed(there, options());
    Hub hub(there, options()); // which does not connect by itself
    closed.leave();
    one.connect(closed.address());
    two.connect(hub.address());
    const auto refused = makeSend(one.peer(), 1, pattern(8));
    const auto taken = makeSend(two.peer(), 1, pattern(8));
    here->send(*one.group(), refused);
    here->send(*two.group(), taken);
    ASSERT_TRUE(here->wait(*refused, deadlineAfter(milliseconds(10000))));
    EXPECT_EQ(refused->status().code(), ErrorCode::kPeerFailed);
    ASSERT_TRUE(here->wait(*taken, deadlineAfter(milliseconds(10000))));
    ASSERT_TRUE(taken->status().ok()) << taken->status().message();
    hub.leave();
  }
}

TEST_F(EngineGloo, BrokenCarrierEndsEverythingWithItsText) {
  CarrierFaults faults;
  faults.breakAfterSends = 40;
  carriers = std::make_shared<MemoryCarriers>(faults);
  Cluster world(2, Config{}, by(carriers));
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

// Long before the group's time-out: the failed end closes its socket.
TEST_F(EngineGloo, CarrierThatCantBeMadeFailsBothEndsSoon) {
  for (const int failing : {0, 1}) {
    CarrierFaults faults;
    faults.failingMake = failing;
    const auto bad = std::make_shared<MemoryCarriers>(faults);
    Cluster world(2, Config{}, [&](GroupOptions& options) {
      options.carrierSource = bad;
      options.route = RoutePolicy::kGloo;
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
    Cluster world(2, Config{}, by(carriers));
    const auto send = world[0].send(1, 1, pattern(300000));
    const auto receive = world[1].receive(0, 1, 300000);
    EXPECT_TRUE(eventually([&] { return carriers->making() == 2; }));
  }
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(30));
}

// Carriers that wait for the side socket, as setting up Gloo does.
class WaitingCarriers final : public gloo::CarrierSource {
 public:
  std::unique_ptr<gloo::Carrier> make(
      const std::string& /*nonce*/,
      int /*end*/,
      const OpenSideSocket& side) override {
    ++begun;
    const AtEnd over([this] { ++ended; });
    side(deadlineAfter(milliseconds(60000)));
    throw Error(ErrorCode::kTransportFailed, "no socket should come");
  }
  std::atomic<int> begun{0}, ended{0};
};

// A member may begin handshakes without end, each with a waiting thread.
TEST_F(EngineGloo, HandshakesThatComeToNothingLeaveNoThreads) {
  constexpr int kTimes = 30;
  const auto waiting = std::make_shared<WaitingCarriers>();
  Cluster world(2, Config{}, [&](GroupOptions& options) {
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
