#include "engine/connect/incoming_handshakes.h"

#include "fakes/log_capture.h"
#include "fakes/peers/initiator.h"
#include "fakes/peers/old_channel.h"
#include "fakes/status_of.h"
#include "transports/shm/shm_transport.h"

namespace dlslime::testing {
namespace {

struct Recorder final : HandshakeResults {
  void onMade(MadeConnection one, ControlSocket socket) override {
    made.push_back(std::move(one));
    sockets.push_back(std::move(socket));
  }
  void onFailed(const ChannelKey& key, Status why, bool gone) override {
    failed.push_back({key, std::move(why), gone});
  }

  struct Failed {
    ChannelKey key;
    Status why;
    bool gone;
  };
  std::vector<MadeConnection> made;
  std::vector<ControlSocket> sockets; // of made connections
  std::vector<Failed> failed;
};

// An initiator with both ends of its socket. The acceptor has its proof.
class ProvenPeer : public Initiator {
 public:
  ProvenPeer(SocketEnds ends, const AddressRecord& target, const Bytes& self)
      : Initiator(ControlSocket(std::move(ends[0])), target),
        far_(std::move(ends[1])) {
    greeting.self = self;
    hello.self.instance = self;
  }
  void offer(shm::ShmTransport& shared) {
    Transport::Context context;
    context.nonce = hello.nonce;
    auto offer = shared.offer(context);
    shared.withdraw(context);
    hello.blob = std::move(offer.blob);
    fds_ = std::move(offer.fds);
    hello.descriptors = static_cast<uint8_t>(fds_.size());
  }
  // Returns what the acceptor hands over; once only.
  Incoming incoming() {
    key.emplace(secret, greeting, pattern(kNonceBytes));
    return {std::move(far_), *key, greeting, hello, std::move(fds_)};
  }

 private:
  ControlSocket far_;
  std::vector<UniqueFd> fds_;
};

class IncomingHandshakesTest : public OldChannel {
 protected:
  // Returns a peer, of the key's instance, that offers shared memory.
  ProvenPeer makePeer() {
    AddressRecord record;
    record.identity = state.self;
    record.token = Bytes(32);
    ProvenPeer peer(unixEnds(), record, key.instance);
    peer.offer(shared);
    return peer;
  }
  // Serves all sockets, as if all were ready.
  void serve() {
    std::vector<pollfd> fds;
    handshakes.addTo(fds);
    std::set<int> all;
    for (const auto& entry : fds) {
      all.insert(entry.fd);
    }
    handshakes.onPoll(all);
  }
  void expectRefusal(ProvenPeer& peer, Verdict verdict, const char* text) {
    handshakes.begin(peer.incoming());
    const auto welcome = peer.welcome();
    ASSERT_TRUE(welcome);
    EXPECT_EQ(welcome->verdict, verdict);
    EXPECT_NE(welcome->text.find(text), std::string::npos) << welcome->text;
    EXPECT_FALSE(handshakes.busy(key));
    EXPECT_TRUE(peer.socket.ended());
    EXPECT_TRUE(results.failed.empty());
  }
  // Begins a handshake, which is accepted.
  void accept(ProvenPeer& peer) {
    handshakes.begin(peer.incoming());
    const auto welcome = peer.welcome();
    ASSERT_TRUE(welcome);
    ASSERT_EQ(welcome->verdict, Verdict::kAccepted) << welcome->text;
  }
  void expectFailure(const char* text) {
    serve();
    EXPECT_FALSE(handshakes.busy(key));
    EXPECT_TRUE(results.made.empty());
    ASSERT_EQ(results.failed.size(), 1U);
    const auto& [failedKey, why, gone] = results.failed[0];
    EXPECT_EQ(failedKey, key);
    EXPECT_EQ(why.code(), ErrorCode::kPeerFailed);
    EXPECT_TRUE(mentions(why, text)) << why.message();
    EXPECT_FALSE(gone);
  }
  // Returns a peer whose hello is kept: each look at the old connection leaves
  // as many messages as the next look reads. Tries again where the process was
  // stopped so long that the hello was refused at once.
  std::optional<ProvenPeer> keep() {
    addWired();
    fill(kMessagesPerPoll);
    for (int i = 0; i < 100; ++i) {
      fill(kMessagesPerPoll);
      auto peer = makePeer();
      peer.hello.replaces = 1;
      handshakes.begin(peer.incoming());
      if (handshakes.busy(key)) {
        return peer;
      }
    }
    return std::nullopt;
  }
  // Begins a handshake of this end with the peer, which does not answer.
  void dial(const Listener& listener) {
    ConnectRequest request;
    request.key = key;
    request.record.identity = makeIdentity();
    request.record.identity.instance = key.instance;
    request.record.socketName = listener.names().front();
    request.record.token = Bytes(32);
    dialer.begin(std::move(request));
    ASSERT_TRUE(dialer.hasConnected(key));
  }

  LogCapture log;
  shm::ShmTransport shared{Config{}}; // the peer's
  Recorder results;
  Acceptor acceptor{
      {state.self, nullptr, "=lo", "set by a test"},
      [](const Greeting& /*greeting*/) { return Bytes(); }};
  Dialer dialer{state, acceptor, results};
  IncomingHandshakes handshakes{state, acceptor, {&dialer}, results};
};

TEST_F(IncomingHandshakesTest, ConfirmedConnectionIsHandedOn) {
  auto peer = makePeer();
  peer.hello.unexpectedLimit = 12345;
  peer.hello.lastSeen = 9;
  peer.hello.rejected = {{"rdma", "no device"}};
  accept(peer);
  EXPECT_TRUE(handshakes.busy(key));
  serve(); // the Confirm has not come
  EXPECT_TRUE(results.made.empty());
  peer.confirm({peer.hello.nonce, {}, {}});
  serve();
  EXPECT_FALSE(handshakes.busy(key));
  EXPECT_TRUE(results.failed.empty());
  ASSERT_EQ(results.made.size(), 1U);
  const auto& made = results.made[0];
  EXPECT_EQ(made.key, key);
  EXPECT_EQ(made.peer.identity.instance, key.instance);
  EXPECT_EQ(made.peer.socketName, peer.hello.socketName);
  EXPECT_EQ(made.pairSecret, peer.key->pairSecret());
  EXPECT_EQ(made.unexpectedLimit, 12345U);
  EXPECT_EQ(made.replaces, 0U);
  EXPECT_EQ(made.peerLast, 9U);
  EXPECT_FALSE(made.began);
  ASSERT_TRUE(made.connection);
  EXPECT_EQ(made.connection->route(), "shm");
  ASSERT_EQ(made.rejected.size(), 1U);
  EXPECT_EQ(made.rejected[0].reason, "no device");
  EXPECT_FALSE(peer.socket.ended());
}

TEST_F(IncomingHandshakesTest, UnknownRouteIsRefusedWithTheReason) {
  auto peer = makePeer();
  peer.hello.route = "pigeon";
  expectRefusal(
      peer, Verdict::kRefused, "the peer says: there is no such route");
}

TEST_F(IncomingHandshakesTest, RouteThatDoesNotReachThePeerIsRefused) {
  auto peer = makePeer();
  peer.hello.self.bootId = "another";
  peer.hello.self.host = "b2";
  expectRefusal(peer, Verdict::kRefused, "the peer says: on another host (b2)");
}

TEST_F(IncomingHandshakesTest, OfferThatIsMalformedIsRefused) {
  auto peer = makePeer();
  peer.hello.blob.clear();
  expectRefusal(peer, Verdict::kRefused, "offer is malformed");
}

TEST_F(IncomingHandshakesTest, LastResortNeedsAGroupOfBothEnds) {
  auto peer = makePeer();
  peer.hello.route = "tcp";
  peer.hello.group = 77;
  expectRefusal(peer, Verdict::kNotJoined, kNotJoinedText);
}

TEST_F(IncomingHandshakesTest, PairThatHasAChannelMakesNoSecondOne) {
  addWired();
  auto peer = makePeer();
  expectRefusal(peer, Verdict::kCrossed, "");
  const EngineLock lock(state);
  EXPECT_TRUE(channel->open());
}

TEST_F(IncomingHandshakesTest, ConfirmOfAnotherConnectionIsReported) {
  auto peer = makePeer();
  accept(peer);
  peer.confirm({"another nonce", {}, {}});
  expectFailure("the peer confirms a different connection");
  EXPECT_TRUE(peer.socket.ended());
}

TEST_F(IncomingHandshakesTest, ProblemToldByThePeerIsReported) {
  auto peer = makePeer();
  accept(peer);
  peer.confirm({peer.hello.nonce, {}, "no message passes"});
  expectFailure("the peer says: no message passes");
}

TEST_F(IncomingHandshakesTest, PeerThatHangsUpBeforeTheConfirmIsReported) {
  {
    auto peer = makePeer();
    accept(peer);
  }
  expectFailure("closed the socket in the handshake");
}

TEST_F(IncomingHandshakesTest, LateHandshakeIsDroppedWithoutAResult) {
  auto peer = makePeer();
  const auto begun = Clock::now();
  accept(peer);
  const auto deadline = handshakes.nextDeadline();
  EXPECT_GE(deadline, begun + HandshakeLimits::kHandshakeTime);
  EXPECT_LE(deadline, deadlineAfter(HandshakeLimits::kHandshakeTime));
  handshakes.expire(deadline - milliseconds(1));
  EXPECT_TRUE(handshakes.busy(key));
  EXPECT_FALSE(peer.socket.ended());
  handshakes.expire(deadline);
  EXPECT_FALSE(handshakes.busy(key));
  EXPECT_TRUE(peer.socket.ended());
  EXPECT_EQ(handshakes.nextDeadline(), never());
  EXPECT_TRUE(results.made.empty() && results.failed.empty());
}

TEST_F(IncomingHandshakesTest, NextHandshakeOfThePeerEndsTheOneBefore) {
  auto first = makePeer();
  accept(first);
  auto second = makePeer();
  second.hello.nonce = "the second";
  second.offer(shared);
  accept(second);
  EXPECT_TRUE(first.socket.ended());
  second.confirm({"the second", {}, {}});
  serve();
  EXPECT_EQ(results.made.size(), 1U);
  EXPECT_TRUE(results.failed.empty());
}

TEST_F(IncomingHandshakesTest, HelloIsKeptUntilTheOldConnectionIsReadToItsEnd) {
  auto peer = keep();
  ASSERT_TRUE(peer);
  const auto soon = handshakes.nextDeadline();
  EXPECT_LE(soon, deadlineAfter(milliseconds(10)));
  EXPECT_FALSE(peer->socket.receiveFrame()) << "there is an answer";
  EXPECT_FALSE(socketOfPeer->ended());
  handshakes.expire(Clock::now());
  const auto welcome = peer->welcome();
  ASSERT_TRUE(welcome);
  EXPECT_EQ(welcome->verdict, Verdict::kAccepted) << welcome->text;
  EXPECT_EQ(welcome->lastSeen, sequence);
  EXPECT_TRUE(socketOfPeer->ended());
  EXPECT_TRUE(handshakes.busy(key));
  peer->confirm({peer->hello.nonce, {}, {}});
  serve();
  ASSERT_EQ(results.made.size(), 1U);
  EXPECT_EQ(results.made[0].replaces, 1U);
}

TEST_F(IncomingHandshakesTest, HelloIsRefusedIfTheOldConnectionDoesNotEnd) {
  const auto begun = Clock::now();
  auto peer = keep();
  ASSERT_TRUE(peer);
  EXPECT_TRUE(eventually([&] {
    fill(kMessagesPerPoll);
    handshakes.expire(Clock::now());
    return !handshakes.busy(key);
  }));
  EXPECT_GE(Clock::now() - begun, milliseconds(20)); // kLongestReading
  const auto welcome = peer->welcome();
  ASSERT_TRUE(welcome);
  EXPECT_EQ(welcome->verdict, Verdict::kRefused);
  EXPECT_EQ(welcome->text, "the old connection is not yet read to the end");
  EXPECT_EQ(handshakes.nextDeadline(), never());
  EXPECT_TRUE(results.failed.empty());
  const EngineLock lock(state);
  EXPECT_EQ(channel->state(), PeerChannel::State::kSevered);
}

TEST_F(IncomingHandshakesTest, ProbeLeavesTheWorkingConnectionAlone) {
  addWired();
  auto peer = makePeer();
  peer.hello.probe = true;
  peer.hello.replaces = 1;
  accept(peer);
  EXPECT_FALSE(handshakes.busy(key));
  peer.confirm({peer.hello.nonce, {}, {}});
  serve();
  EXPECT_TRUE(peer.socket.ended());
  EXPECT_TRUE(results.made.empty() && results.failed.empty());
  const EngineLock lock(state);
  EXPECT_TRUE(channel->open());
}

TEST_F(IncomingHandshakesTest, OwnAttemptOfTheSmallerInstanceGoesOn) {
  const auto listener = Listener::onThisHost();
  key.instance = Bytes(kInstanceBytes, std::byte{0xff});
  dial(listener);
  auto peer = makePeer();
  expectRefusal(peer, Verdict::kCrossed, "");
  EXPECT_TRUE(dialer.dials(key));
}

TEST_F(IncomingHandshakesTest, OwnAttemptOfTheLargerInstanceEnds) {
  const auto listener = Listener::onThisHost();
  key.instance = Bytes(kInstanceBytes, std::byte{0});
  dial(listener);
  auto peer = makePeer();
  accept(peer);
  EXPECT_FALSE(dialer.dials(key));
  EXPECT_TRUE(results.failed.empty());
}

TEST_F(IncomingHandshakesTest, SecondSocketThatIsNotExpectedIsRefused) {
  auto peer = makePeer();
  peer.hello.route = kSideRoute;
  handshakes.begin(peer.incoming());
  EXPECT_TRUE(peer.socket.ended());
  EXPECT_EQ(log.count("the peer's second socket is not expected"), 1U)
      << log.all();
  EXPECT_FALSE(handshakes.busy(key));
}

} // namespace
} // namespace dlslime::testing
