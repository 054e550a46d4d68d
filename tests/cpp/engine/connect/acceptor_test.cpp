// The end that answers unproven connections, without an engine.
#include "engine/connect/acceptor.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <thread>

#include "base/random.h"
#include "fakes/log_capture.h"
#include "fakes/peers/initiator.h"
#include "fakes/world.h"

namespace dlslime::testing {
namespace {

class AcceptorTest : public ::testing::Test {
 protected:
  AcceptorTest() {
    record.identity = makeIdentity();
    record.identity.instance = randomBytes(kInstanceBytes);
    record.token = Bytes(32);
    acceptor.emplace(
        Acceptor::Self{record.identity, nullptr, "=lo", "set by a test"},
        [this](const Greeting& /*greeting*/) { return record.token; });
  }
  // Lets the acceptor look once, as if all sockets were ready.
  void look() {
    std::vector<pollfd> fds;
    acceptor->addTo(fds);
    std::set<int> all;
    for (const auto& entry : fds) {
      all.insert(entry.fd);
    }
    acceptor->onPoll(all);
  }
  // Lets the acceptor look once, as if only the listener had been ready: all
  // other bytes have come since.
  void lookAtListener() {
    std::vector<pollfd> fds;
    acceptor->addTo(fds);
    acceptor->onPoll({fds.front().fd});
  }
  // Lets the acceptor accept `count` connections, at most 64 in a look.
  void accept(size_t count) {
    for (size_t i = 0; i < count; i += 64) {
      look();
    }
  }
  ControlSocket knock() const {
    return ControlSocket::connectTo(acceptor->socketName());
  }
  // Connects peers that say nothing yet.
  std::vector<Initiator> connect(size_t count) const {
    std::vector<Initiator> peers;
    for (size_t i = 0; i < count; ++i) {
      peers.emplace_back(knock(), record);
    }
    return peers;
  }
  // Returns the verdict that has come; nothing: none has.
  static std::optional<Verdict> verdict(ControlSocket& socket) {
    const auto frame = socket.receiveFrame();
    return frame ? std::optional(decodeChallenge(*frame).verdict)
                 : std::nullopt;
  }

  const size_t most = HandshakeLimits::ofProcess().unproven;
  AddressRecord record;
  LogCapture log;
  std::optional<Acceptor> acceptor;
};

// A member names the process at once, so a connection with an unfinished
// greeting keeps no place.
TEST_F(AcceptorTest, StrangersThatHaveSaidAByteLeaveAtOnceForOthers) {
  std::vector<ControlSocket> strangers;
  for (size_t i = 0; i < 4 * most; ++i) {
    strangers.push_back(knock());
    ASSERT_EQ(::send(strangers.back().fd(), "x", 1, MSG_NOSIGNAL), 1);
  }
  accept(strangers.size());
  const auto asked =
      std::count_if(strangers.begin(), strangers.end(), [](ControlSocket& one) {
        return verdict(one) == Verdict::kLater && one.ended();
      });
  EXPECT_EQ(static_cast<size_t>(asked), 3 * most);
  EXPECT_EQ(log.count("the oldest are dropped"), 1U) << log.all();
}

// Even a genuine peer may be delayed between connecting and greeting.
TEST_F(AcceptorTest, PeersThatHaveGreetedSinceTheLastLookKeepTheirPlaces) {
  auto peers = connect(most);
  accept(most);
  for (auto& peer : peers) {
    peer.socket.sendFrame(encode(peer.greeting));
  }
  auto others = connect(1);
  lookAtListener();
  for (auto& peer : peers) {
    EXPECT_EQ(verdict(peer.socket), Verdict::kAccepted);
  }
  others.front().socket.sendFrame(encode(others.front().greeting));
  look();
  EXPECT_EQ(verdict(others.front().socket), Verdict::kAccepted);
}

// The acceptor's own process may have been stopped, while the peers were not.
TEST_F(AcceptorTest, PeersThatHaveProvedThemselvesSinceTheLastLookAreTaken) {
  auto peers = connect(most);
  for (auto& peer : peers) {
    peer.socket.sendFrame(encode(peer.greeting));
  }
  accept(most);
  for (auto& peer : peers) {
    ASSERT_TRUE(peer.takeChallenge());
    peer.sendHello();
  }
  std::this_thread::sleep_for(HandshakeLimits::kSafeTime);
  auto others = connect(1);
  lookAtListener();
  EXPECT_EQ(acceptor->take().size(), 1U) << "the oldest is served first";
  look();
  EXPECT_EQ(acceptor->take().size(), most - 1);
}

} // namespace
} // namespace dlslime::testing
