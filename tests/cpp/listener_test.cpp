// Whoever knocks at a process's socket: refused, logged, nothing else happens.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>
#include <filesystem>
#include <random>

#include "core/bytes.h"
#include "core/random.h"
#include "engine/control_socket.h"
#include "engine/wire_records.h"
#include "fakes/cluster.h"
#include "fakes/initiator.h"
#include "fakes/log_capture.h"
#include "shm/shm_transport.h"

namespace dlslime::testing {
namespace {

size_t openDescriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

class ListenerTest : public ::testing::Test {
 protected:
  ListenerTest() {
    const auto bytes = world.rendezvous("first")->tryGet(addressKey(0));
    record = decodeAddress(*bytes);
  }
  ControlSocket knock() {
    return ControlSocket::connectTo(record.socketName);
  }
  // Raw bytes, without a frame around them. There is room for some hundred
  // single bytes, until the listener reads.
  static void sendRaw(const ControlSocket& socket, const Bytes& bytes) {
    pollfd entry{socket.fd(), POLLOUT, 0};
    ASSERT_EQ(::poll(&entry, 1, 5000), 1);
    ASSERT_EQ(
        ::send(socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
        static_cast<ssize_t>(bytes.size()));
  }
  static bool readable(const ControlSocket& socket, int timeoutMs = 5000) {
    pollfd entry{socket.fd(), POLLIN, 0};
    return ::poll(&entry, 1, timeoutMs) == 1;
  }
  static ::testing::AssertionResult isClosed(ControlSocket& socket) {
    if (!readable(socket)) {
      return ::testing::AssertionFailure() << "it stays open";
    }
    try {
      const auto frame = socket.receiveFrame();
      return ::testing::AssertionFailure()
          << "there is an answer: " << frame.has_value();
    } catch (const Error&) {
      return ::testing::AssertionSuccess();
    }
  }
  Initiator initiator() {
    return {knock(), record};
  }
  // Offers to share memory, with the nonce "n", and returns the answer.
  std::optional<Welcome> offerBy(Initiator& peer) {
    Transport::Context context;
    context.nonce = "n";
    const auto offer = shared_.offer(context);
    shared_.withdraw(context);
    peer.hello.nonce = context.nonce;
    peer.hello.blob = offer.blob;
    return peer.ask(offer.fds);
  }
  void expectWell() {
    EXPECT_TRUE(world.passes(0, 1));
    EXPECT_TRUE(world.passes(1, 0, 3 << 20));
  }
  size_t refusals() const {
    return log.count("refused");
  }
  void expectRefusal() {
    EXPECT_TRUE(eventually([&] { return refusals() > 0; }));
    EXPECT_EQ(refusals(), 1U) << log.all();
    expectWell();
  }

  LogCapture log;
  Cluster world{2};
  AddressRecord record;

 private:
  shm::ShmTransport shared_{Config{}}; // of offerBy()
};

TEST_F(ListenerTest, SocketNameIsOfTheRecord) {
  EXPECT_EQ(record.socketName, world[0].engine->socketName());
  EXPECT_NE(record.socketName, world[1].engine->socketName());
}

TEST_F(ListenerTest, GarbageIsRefusedAndLogged) {
  auto socket = knock();
  sendRaw(socket, pattern(3000));
  EXPECT_TRUE(isClosed(socket));
  expectRefusal();
}

TEST_F(ListenerTest, FrameOfGarbageIsRefusedAndLogged) {
  auto socket = knock();
  socket.sendFrame(pattern(500));
  EXPECT_TRUE(isClosed(socket));
  expectRefusal();
}

TEST_F(ListenerTest, EmptyFrameIsRefused) {
  auto socket = knock();
  socket.sendFrame({});
  EXPECT_TRUE(isClosed(socket));
  expectRefusal();
}

TEST_F(ListenerTest, OversizedFrameIsRefusedByItsLengthAlone) {
  for (const uint32_t size : {1025U, 64U * 1024 + 1, 1U << 30, 0xffffffffU}) {
    ByteWriter writer;
    writer.number(size);
    auto socket = knock();
    sendRaw(socket, writer.take());
    EXPECT_TRUE(isClosed(socket)) << size;
  }
  expectWell();
}

TEST_F(ListenerTest, TruncatedFrameAndThenTheEndIsRefused) {
  const Bytes good = encode(initiator().greeting);
  for (const size_t size :
       {size_t{0}, size_t{3}, size_t{10}, good.size() - 1}) {
    ByteWriter writer;
    writer.blob(good);
    Bytes frame = writer.take();
    frame.resize(size + (size == 0 ? 0 : 4));
    const auto socket = knock();
    if (!frame.empty()) {
      sendRaw(socket, frame);
    }
  }
  expectWell();
}

TEST_F(ListenerTest, HelloWithAnotherSecretIsRefusedAndToldNothing) {
  for (const size_t size : {0, 31, 32, 33, 1000}) {
    auto peer = initiator();
    ASSERT_TRUE(peer.meet());
    peer.key.emplace(pattern(size), peer.greeting, pattern(32));
    peer.sendHello();
    EXPECT_TRUE(isClosed(peer.socket)) << size;
  }
  expectRefusal();
}

TEST_F(ListenerTest, ProofOfAnotherSecretIsSeenByTheInitiator) {
  auto peer = initiator();
  peer.secret[31] ^= std::byte{1};
  EXPECT_FALSE(peer.meet());
}

TEST_F(ListenerTest, AnotherInstanceIsToldToBeAStranger) {
  auto peer = initiator();
  peer.greeting.target = randomBytes(16);
  const auto challenge = peer.greet();
  ASSERT_TRUE(challenge);
  EXPECT_EQ(challenge->verdict, Verdict::kStranger);
  EXPECT_TRUE(isClosed(peer.socket));
  expectRefusal();
}

TEST_F(ListenerTest, PeerThatClaimsToBeThisProcessIsRefused) {
  auto peer = initiator();
  peer.greeting.self = record.identity.instance;
  peer.socket.sendFrame(encode(peer.greeting));
  EXPECT_TRUE(isClosed(peer.socket));
  expectRefusal();
}

TEST_F(ListenerTest, HelloOfAnotherInstanceThanTheGreetingIsRefused) {
  auto peer = initiator();
  ASSERT_TRUE(peer.meet());
  peer.hello.self.instance = randomBytes(16);
  peer.sendHello();
  EXPECT_TRUE(isClosed(peer.socket));
  expectRefusal();
}

// What was recorded on the network is of no use: each handshake has its key.
TEST_F(ListenerTest, RecordedHelloIsRefused) {
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

TEST_F(ListenerTest, SecretOfAPairIsNeededToReplaceItsConnection) {
  auto unknown = initiator();
  unknown.greeting.secret = SecretKind::kPair;
  const auto challenge = unknown.greet();
  ASSERT_TRUE(challenge);
  EXPECT_EQ(challenge->verdict, Verdict::kStranger);
  auto byToken = initiator(); // which every member of the group knows
  ASSERT_TRUE(byToken.meet());
  byToken.hello.replaces = 1;
  byToken.sendHello();
  EXPECT_TRUE(isClosed(byToken.socket));
  expectRefusal();
}

TEST_F(ListenerTest, DescriptorsBeforeTheProofNeverReachThisProcess) {
  const auto before = openDescriptors();
  auto peer = initiator();
  std::vector<UniqueFd> fds;
  fds.emplace_back(eventfd(0, EFD_CLOEXEC));
  peer.socket.sendDescriptors(fds); // beside the first byte of a frame
  EXPECT_TRUE(isClosed(peer.socket));
  expectRefusal();
  EXPECT_EQ(log.count("descriptors where the handshake has none"), 1U)
      << log.all();
  EXPECT_LE(openDescriptors(), before + 20); // those of the pair of ranks
}

TEST_F(ListenerTest, OtherDescriptorsThanAnnouncedAreRefused) {
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

TEST_F(ListenerTest, MoreDescriptorsThanThereMayBeAreRefused) {
  auto peer = initiator();
  ASSERT_TRUE(peer.meet());
  peer.hello.descriptors = kMostDescriptors + 1;
  peer.socket.sendFrame(
      peer.key->seal(SessionKey::End::kInitiator, 0, encode(peer.hello)));
  EXPECT_TRUE(isClosed(peer.socket));
  expectRefusal();
}

TEST_F(ListenerTest, FrameThatComesByteByByteIsTaken) {
  auto peer = initiator();
  ByteWriter writer;
  writer.blob(encode(peer.greeting));
  for (const auto byte : writer.take()) {
    sendRaw(peer.socket, {byte});
  }
  EXPECT_TRUE(peer.nextFrame());
}

TEST_F(ListenerTest, OtherProtocolVersionIsRefusedNamingBoth) {
  auto peer = initiator();
  Bytes frame = encode(peer.greeting);
  frame[8] = std::byte{kProtocolVersion + 1};
  peer.socket.sendFrame(frame);
  EXPECT_TRUE(isClosed(peer.socket));
  expectRefusal();
  EXPECT_EQ(log.count("version " + std::to_string(kProtocolVersion + 1)), 1U)
      << log.all();
}

TEST_F(ListenerTest, GoodSecretWithAnUnknownRouteIsRefused) {
  auto peer = initiator();
  peer.hello.route = "pigeon";
  const auto welcome = peer.ask();
  ASSERT_TRUE(welcome);
  EXPECT_EQ(welcome->verdict, Verdict::kRefused);
  expectWell();
}

TEST_F(ListenerTest, GoodSecretWithAMalformedOfferIsRefused) {
  shm::ShmTransport transport{Config{}};
  Transport::Context context;
  context.nonce = "0123456789abcdef";
  for (int kind = 0; kind < 6; ++kind) {
    auto offer = transport.offer(context);
    switch (kind) {
      case 0:
        offer.fds.clear();
        break;
      case 1:
        offer.fds.pop_back();
        break;
      case 2:
        offer.blob.clear();
        break;
      case 3: // rings of another size than the segment's
        offer.blob[1] ^= std::byte{0x20};
        break;
      case 4: // an eventfd instead of the segment
        offer.fds.back() = UniqueFd(eventfd(0, EFD_CLOEXEC));
        break;
      default:
        offer.blob.resize(5000);
    }
    transport.withdraw(context);
    auto peer = initiator();
    peer.hello.blob = offer.blob;
    const auto welcome = peer.ask(offer.fds);
    ASSERT_TRUE(welcome) << kind;
    EXPECT_EQ(welcome->verdict, Verdict::kRefused) << kind;
  }
  expectWell();
}

// A peer that has the token, connects properly, and then writes nonsense.
TEST_F(ListenerTest, ConnectedPeerThatTalksNonsenseHarmsOnlyItself) {
  ASSERT_TRUE(world.passes(0, 1));
  std::mt19937_64 random(7);
  for (int round = 0; round < 10; ++round) {
    shm::ShmTransport transport{Config{}};
    Transport::Context context;
    context.nonce = "nonce " + std::to_string(round);
    context.initiator = true;
    auto peer = initiator();
    auto offer = transport.offer(context);
    peer.hello.nonce = context.nonce;
    peer.hello.blob = offer.blob;
    const auto welcome = peer.ask(offer.fds);
    ASSERT_TRUE(welcome);
    ASSERT_EQ(welcome->verdict, Verdict::kAccepted) << welcome->text;
    const auto connection =
        transport.finish(context, {welcome->blob, std::move(peer.received)});
    for (uint64_t i = 1; i < 300; ++i) {
      MessageHeader header;
      header.type = static_cast<MessageType>(1 + random() % 12);
      if (random() % 200 == 0) {
        header.type = static_cast<MessageType>(random() % 256);
      }
      header.sequence = i;
      header.group = static_cast<uint32_t>(random() % 4);
      header.source = static_cast<uint32_t>(random() % 4);
      header.tag = static_cast<uint32_t>(random() % 2);
      header.id = random() % 3 == 0 ? random() : (1ULL << 32) | random() % 4;
      header.length = random() % 3 == 0 ? random() : random() % 100000;
      header.offset = random() % 3 == 0 ? random() : random() % 100000;
      header.address = random();
      static_cast<void>(connection->send(header, pattern(random() % 500)));
    }
    std::this_thread::sleep_for(milliseconds(5));
  }
  expectWell();
  for (const auto& report : world[0].engine->report(*world[0].group)) {
    EXPECT_LE(report.counters.receivedMessages, 10U);
  }
}

TEST_F(ListenerTest, HundredsOfIdleConnectionsKeepNobodyOut) {
  std::vector<ControlSocket> idle;
  for (int i = 0; i < 400; ++i) {
    idle.push_back(knock());
    idle.push_back(ControlSocket::connectTo(world[1].engine->socketName()));
  }
  EXPECT_TRUE(world.passes(0, 1));
  const auto isGone = [](const ControlSocket& one) { return one.ended(); };
  EXPECT_TRUE(eventually([&] {
    return std::all_of(idle.begin(), idle.end(), isGone);
  })) << "silent ones end by themselves after a second";
}

// Whatever one process begins and does not finish, others have room.
TEST_F(ListenerTest, UnfinishedHandshakesOfOneProcessAreFew) {
  std::vector<Initiator> unfinished;
  size_t later = 0;
  for (int i = 0; i < 200; ++i) {
    unfinished.push_back(initiator());
    const auto welcome = offerBy(unfinished.back());
    ASSERT_TRUE(welcome) << i;
    later += welcome->verdict == Verdict::kLater ? 1 : 0;
  }
  EXPECT_EQ(later, 200 - HandshakeLimits::ofProcess().provenOfOneSource);
}

// It would take our leaving for our death.
TEST_F(ListenerTest, PeerThatWasAnsweredStaysWhenHundredsKnock) {
  auto peer = initiator();
  ASSERT_TRUE(offerBy(peer));
  std::vector<ControlSocket> idle;
  for (int i = 0; i < 300; ++i) {
    idle.push_back(knock());
  }
  EXPECT_TRUE(eventually([&] { return idle.front().ended(); }));
  EXPECT_FALSE(peer.socket.ended());
  peer.confirm({"n", {}, {}});
  EXPECT_TRUE(eventually([&] { return world[0].engine->connections() == 1; }));
}

TEST_F(ListenerTest, ConnectionsThatComeAndGoLeaveNothingOpen) {
  ASSERT_TRUE(world.passes(0, 1));
  const auto before = openDescriptors();
  for (int i = 0; i < 300; ++i) {
    auto socket = knock();
    if (i % 3 == 0) {
      sendRaw(socket, pattern(static_cast<size_t>(i) + 1));
    } else if (i % 3 == 1) {
      std::vector<UniqueFd> fds;
      for (int j = 0; j < kMostDescriptors; ++j) {
        fds.emplace_back(eventfd(0, EFD_CLOEXEC));
      }
      socket.sendDescriptors(fds);
    }
  }
  // Fewer, where the handshake's own were still open then.
  EXPECT_TRUE(eventually([&] { return openDescriptors() <= before; }))
      << openDescriptors() << ", more than " << before;
  expectWell();
}

TEST_F(ListenerTest, BytesAfterTheHandshakeAreIgnored) {
  // What a peer's process says on the socket later is not an end, either.
  auto peer = initiator();
  ASSERT_TRUE(offerBy(peer));
  EXPECT_EQ(world[0].engine->connections(), 0U) << "it is not confirmed yet";
  peer.confirm({"n", {}, {}});
  const auto connected = [&] { return world[0].engine->connections() == 1; };
  ASSERT_TRUE(eventually(connected));
  sendRaw(peer.socket, pattern(5000));
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_TRUE(connected());
  expectWell();
}

TEST_F(ListenerTest, ConfirmWithoutASealIsRefused) {
  auto peer = initiator();
  ASSERT_TRUE(offerBy(peer));
  peer.socket.sendFrame(encode(Confirm{"n", {}, {}}));
  EXPECT_TRUE(eventually([&] { return peer.socket.ended(); }));
  EXPECT_EQ(world[0].engine->connections(), 0U);
  expectWell();
}

TEST_F(ListenerTest, ProbeNeedsThePairsSecretAndNothingComesOfIt) {
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
