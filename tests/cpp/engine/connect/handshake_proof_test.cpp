// Purpose of the handshake's proofs: refusal of processes without the secret,
// and of records meant for a different handshake.
#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include "base/random.h"
#include "fakes/peers/knocking.h"

namespace dlslime::testing {
namespace {

using HandshakeProof = KnockingTest;

TEST_F(HandshakeProof, HelloWithAnotherSecretIsRefusedAndToldNothing) {
  for (const size_t size : {0, 31, 32, 33, 1000}) {
    auto peer = initiator();
    ASSERT_TRUE(peer.meet());
    peer.key.emplace(pattern(size), peer.greeting, pattern(32));
    peer.sendHello();
    EXPECT_TRUE(isClosed(peer.socket)) << size;
  }
  expectRefusal();
}

TEST_F(HandshakeProof, ProofOfAnotherSecretIsSeenByTheInitiator) {
  auto peer = initiator();
  peer.secret[31] ^= std::byte{1};
  EXPECT_FALSE(peer.meet());
}

TEST_F(HandshakeProof, AnotherInstanceIsToldToBeAStranger) {
  auto peer = initiator();
  peer.greeting.target = randomBytes(16);
  const auto challenge = peer.greet();
  ASSERT_TRUE(challenge);
  EXPECT_EQ(challenge->verdict, Verdict::kStranger);
  EXPECT_TRUE(isClosed(peer.socket));
  expectRefusal();
}

TEST_F(HandshakeProof, PeerThatClaimsToBeThisProcessIsRefused) {
  auto peer = initiator();
  peer.greeting.self = record.identity.instance;
  peer.socket.sendFrame(encode(peer.greeting));
  EXPECT_TRUE(isClosed(peer.socket));
  expectRefusal();
}

TEST_F(HandshakeProof, HelloOfAnotherInstanceThanTheGreetingIsRefused) {
  auto peer = initiator();
  ASSERT_TRUE(peer.meet());
  peer.hello.self.instance = randomBytes(16);
  peer.sendHello();
  EXPECT_TRUE(isClosed(peer.socket));
  expectRefusal();
}

// Records from the network are useless, since each handshake has a key of its
// own.
TEST_F(HandshakeProof, RecordedHelloIsRefused) {
  auto first = initiator();
  ASSERT_TRUE(first.meet());
  const auto recorded =
      first.key->seal(SessionKey::End::kInitiator, 0, encode(first.hello));
  Initiator second(knock(), record);
  second.greeting = first.greeting;
  ASSERT_TRUE(second.meet());
  second.socket.sendFrame(recorded);
  EXPECT_TRUE(isClosed(second.socket));
  expectRefusal();
}

TEST_F(HandshakeProof, SecretOfAPairIsNeededToReplaceItsConnection) {
  auto unknown = initiator();
  unknown.greeting.secret = SecretKind::kPair;
  const auto challenge = unknown.greet();
  ASSERT_TRUE(challenge);
  EXPECT_EQ(challenge->verdict, Verdict::kStranger);
  auto byToken = initiator(); // known to every member of the group
  ASSERT_TRUE(byToken.meet());
  byToken.hello.replaces = 1;
  byToken.sendHello();
  EXPECT_TRUE(isClosed(byToken.socket));
  expectRefusal();
}

TEST_F(HandshakeProof, DescriptorsBeforeTheProofNeverReachThisProcess) {
  const auto before = openDescriptors();
  auto peer = initiator();
  std::vector<UniqueFd> fds;
  fds.emplace_back(eventfd(0, EFD_CLOEXEC));
  peer.socket.sendDescriptors(fds); // beside the first byte of a frame
  EXPECT_TRUE(isClosed(peer.socket));
  expectRefusal();
  EXPECT_EQ(log.count("descriptors where the handshake has none"), 1U)
      << log.all();
  EXPECT_LE(openDescriptors(), before + 20); // those of the two ranks
}

TEST_F(HandshakeProof, OtherDescriptorsThanAnnouncedAreRefused) {
  for (const size_t sent : {1, 3}) {
    auto peer = initiator();
    ASSERT_TRUE(peer.meet());
    peer.hello.descriptors = 2;
    peer.socket.sendFrame(
        peer.key->seal(SessionKey::End::kInitiator, 0, encode(peer.hello)));
    std::vector<UniqueFd> fds;
    for (size_t i = 0; i < sent; ++i) {
      fds.emplace_back(eventfd(0, EFD_CLOEXEC));
    }
    peer.socket.sendDescriptors(fds);
    EXPECT_TRUE(isClosed(peer.socket)) << sent;
  }
  EXPECT_EQ(log.count("were announced"), 2U) << log.all();
  expectWell();
}

TEST_F(HandshakeProof, MoreDescriptorsThanThereMayBeAreRefused) {
  auto peer = initiator();
  ASSERT_TRUE(peer.meet());
  peer.hello.descriptors = kMostDescriptors + 1;
  peer.socket.sendFrame(
      peer.key->seal(SessionKey::End::kInitiator, 0, encode(peer.hello)));
  EXPECT_TRUE(isClosed(peer.socket));
  expectRefusal();
}

TEST_F(HandshakeProof, ConfirmWithoutASealIsRefused) {
  auto peer = initiator();
  ASSERT_TRUE(offerBy(peer));
  peer.socket.sendFrame(encode(Confirm{"n", {}, {}}));
  EXPECT_TRUE(eventually([&] { return peer.socket.ended(); }));
  EXPECT_EQ(world[0].engine->connections(), 0U);
  expectWell();
}

TEST_F(HandshakeProof, ProbeNeedsThePairsSecretAndNothingComesOfIt) {
  auto first = initiator();
  ASSERT_TRUE(offerBy(first));
  first.confirm({"n", {}, {}});
  ASSERT_TRUE(eventually([&] { return world[0].engine->connections() == 1; }));
  auto peer = initiator();
  peer.greeting.self = first.greeting.self;
  peer.hello.self.instance = first.greeting.self;
  peer.greeting.secret = SecretKind::kPair;
  peer.secret = first.key->pairSecret();
  peer.hello.probe = true;
  const auto welcome = offerBy(peer);
  ASSERT_TRUE(welcome);
  EXPECT_EQ(welcome->verdict, Verdict::kAccepted) << welcome->text;
  peer.confirm({"n", {}, {}});
  EXPECT_TRUE(eventually([&] { return peer.socket.ended(); }));
  EXPECT_EQ(world[0].engine->connections(), 1U);
  expectWell();
}

} // namespace
} // namespace dlslime::testing
