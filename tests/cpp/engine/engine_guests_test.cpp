// Which processes may come to a hub or to an endpoint, and how the rest are
// refused.
#include <gtest/gtest.h>

#include "engine/hub.h"
#include "fakes/log_capture.h"
#include "fakes/world.h"

namespace dlslime::testing {
namespace {

constexpr uint32_t kTag = 5;
constexpr int kMostWaiting = 1024; // guests of a process
constexpr int kMostOfOne = 4096; // waiting and accepted

std::unique_ptr<Endpoint> endpointOf(
    const std::shared_ptr<Engine>& engine,
    const char* name = "visitor") {
  Endpoint::Options options;
  options.name = name;
  return std::make_unique<Endpoint>(engine, options);
}

class EngineGuests : public ::testing::Test {
 protected:
  static std::shared_ptr<Engine> engine() {
    return std::make_shared<Engine>(Config{});
  }
  static BufferPtr send(Engine& from, Endpoint& endpoint, unsigned seed) {
    const auto sent = makeSend(endpoint.peer(), kTag, pattern(100, seed));
    from.send(*endpoint.group(), sent);
    return sent;
  }
  static Status tell(Engine& from, Endpoint& endpoint, unsigned seed) {
    const auto sent = send(from, endpoint, seed);
    return from.wait(*sent, deadlineAfter(milliseconds(10000)))
        ? sent->status()
        : Status(ErrorCode::kTimeout, "it was neither taken nor refused");
  }
  static void expectText(
      const Status& status,
      const std::string& with,
      const std::string& without) {
    EXPECT_EQ(status.code(), ErrorCode::kPeerFailed);
    EXPECT_NE(status.message().find(with), std::string::npos)
        << status.message();
    EXPECT_EQ(status.message().find(without), std::string::npos)
        << status.message();
  }

  LogCapture log;
  std::shared_ptr<Engine> here = engine(), other = engine();
};

TEST_F(EngineGuests, GuestThatIsOneTooManyIsToldSoAndMayComeLater) {
  Hub hub(here, {});
  const auto come = [&] {
    auto endpoint = endpointOf(other);
    endpoint->connect(hub.address());
    return endpoint;
  };
  std::vector<std::unique_ptr<Endpoint>> all;
  std::vector<BufferPtr> sent;
  for (int i = 0; i < kMostWaiting; ++i) {
    all.push_back(come());
    sent.push_back(send(*other, *all.back(), 1));
  }
  for (const auto& one : sent) {
    ASSERT_TRUE(other->wait(*one, deadlineAfter(milliseconds(60000))));
    ASSERT_TRUE(one->status().ok()) << one->status().message();
  }
  const auto tooMany = come();
  expectText(tell(*other, *tooMany, 1), "1024", "has been closed");
  const auto acceptQueue = hub.accept();
  EXPECT_EQ(acceptQueue.size(), size_t(kMostWaiting));
  const auto later = come();
  EXPECT_TRUE(tell(*other, *later, 1).ok());
  for (const auto& guest : acceptQueue) {
    here->leave(*guest);
  }
}

TEST_F(EngineGuests, AcceptedGuestsOfOneProcessAreBoundedToo) {
  Hub hub(here, {});
  std::vector<std::unique_ptr<Endpoint>> all;
  std::vector<std::shared_ptr<Group>> acceptQueue;
  while (acceptQueue.size() < kMostOfOne) {
    std::vector<BufferPtr> sent;
    for (int i = 0; i < kMostWaiting; ++i) {
      all.push_back(endpointOf(other));
      all.back()->connect(hub.address());
      sent.push_back(send(*other, *all.back(), 1));
    }
    for (const auto& one : sent) {
      ASSERT_TRUE(other->wait(*one, deadlineAfter(milliseconds(60000))));
      ASSERT_TRUE(one->status().ok()) << one->status().message();
    }
    std::ranges::move(hub.accept(), std::back_inserter(acceptQueue));
  }
  const auto tooMany = endpointOf(other);
  tooMany->connect(hub.address());
  expectText(tell(*other, *tooMany, 1), "4096 endpoints", "has been closed");
  all.pop_back(); // leaves
  const auto again = [&] {
    const auto later = endpointOf(other);
    later->connect(hub.address());
    return tell(*other, *later, 1).ok();
  };
  EXPECT_TRUE(eventually(again));
  for (const auto& guest : acceptQueue) {
    here->leave(*guest);
  }
}

TEST_F(EngineGuests, GuestOfAClosedHubIsToldThatItIsClosed) {
  Hub hub(here, {});
  const auto keeper = endpointOf(here); // keeps the process connectable
  const auto late = endpointOf(other);
  late->connect(hub.address());
  hub.leave();
  expectText(tell(*other, *late, 1), "has been closed", "4096");
}

// The address of an endpoint with a peer leads neither to the endpoint nor to
// messages of the pair, whichever rank the third endpoint takes.
TEST_F(EngineGuests, StrayAtAnEndpointThatHasItsPeerIsToldSo) {
  for (const bool sameProcess : {true, false}) {
    const auto third = sameProcess ? other : engine();
    for (int round = 0; round < 12 && !HasFailure(); ++round) {
      const auto one = endpointOf(here, "one"), peer = endpointOf(other);
      one->connect(peer->address());
      peer->connect(one->address());
      ASSERT_TRUE(tell(*other, *peer, 1).ok());
      const auto stray = endpointOf(third, "stray");
      stray->connect(one->address());
      const auto told = tell(*third, *stray, 9);
      EXPECT_FALSE(told.ok()) << "it was taken for the peer";
      EXPECT_EQ(told.message().find("has been closed"), std::string::npos)
          << told.message();
      ASSERT_TRUE(tell(*other, *peer, 2).ok()); // the pair goes on
      for (const unsigned seed : {1U, 2U}) {
        const auto received = makeReceive(one->peer(), kTag, 100);
        here->receive(*one->group(), received);
        ASSERT_TRUE(here->wait(*received, deadlineAfter(milliseconds(10000))));
        EXPECT_TRUE(sameBytes(received->buffer(), pattern(100, seed)))
            << "a message of another's";
      }
    }
  }
}

// An endpoint's peer is the endpoint named by connect(), even if a different
// process is quicker.
TEST_F(EngineGuests, StrayThatComesBeforeThePeerIsNotTakenForIt) {
  for (const bool sameProcess : {true, false}) {
    const auto third = sameProcess ? other : engine();
    for (int round = 0; round < 12 && !HasFailure(); ++round) {
      const auto one = endpointOf(here, "one"), peer = endpointOf(other);
      one->connect(peer->address());
      const auto stray = endpointOf(third, "stray");
      stray->connect(one->address());
      EXPECT_FALSE(tell(*third, *stray, 9).ok()) << "it was taken for the peer";
      peer->connect(one->address());
      ASSERT_TRUE(tell(*other, *peer, 1).ok());
      const auto received = makeReceive(one->peer(), kTag, 100);
      here->receive(*one->group(), received);
      ASSERT_TRUE(here->wait(*received, deadlineAfter(milliseconds(10000))));
      EXPECT_TRUE(sameBytes(received->buffer(), pattern(100, 1)));
    }
  }
}

// A stray endpoint has connected before connect() names the peer.
TEST_F(EngineGuests, EndpointThatAnotherOneHasTakenSaysSo) {
  bool refused = false;
  for (int round = 0; round < 64 && !refused; ++round) {
    const auto one = endpointOf(here, "one"), peer = endpointOf(other);
    const auto stray = endpointOf(other, "stray");
    stray->connect(one->address());
    ASSERT_TRUE(tell(*other, *stray, 9).ok());
    // Whether the ranks clash depends on the rank taken by the stray.
    try {
      one->connect(peer->address());
    } catch (const Error& error) {
      EXPECT_EQ(error.status().code(), ErrorCode::kInvalidArgument);
      refused = true;
    }
  }
  EXPECT_TRUE(refused) << "the stray is taken for the peer";
}

} // namespace
} // namespace dlslime::testing
