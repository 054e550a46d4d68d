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
  static std::optional<Welcome> answerTo(ControlSocket& socket) {
    for (int i = 0; i < 100 && readable(socket); ++i) {
      if (auto frame = socket.receiveFrame()) {
        return decodeWelcome(frame->bytes);
      }
    }
    return std::nullopt;
  }
  Hello goodHello() const {
    Hello hello;
    hello.targetInstance = record.identity.instance;
    hello.token = record.token;
    hello.self = record; // anybody's will do
    hello.self.identity = makeIdentity();
    hello.nonce = "0123456789abcdef";
    hello.group = record.group;
    hello.route = "shm";
    return hello;
  }
  // Offers to share memory, with the nonce "n", and returns the answer.
  std::optional<Welcome> offerTo(ControlSocket& socket, bool probe = false) {
    Transport::Context context;
    context.nonce = "n";
    auto hello = goodHello();
    hello.nonce = context.nonce;
    hello.probe = probe;
    const auto offer = shared_.offer(context);
    hello.blob = offer.blob;
    socket.sendFrame(encode(hello), offer.fds);
    return answerTo(socket);
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
  shm::ShmTransport shared_{Config{}}; // of offerTo()
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
  socket.sendFrame(pattern(500), {});
  EXPECT_TRUE(isClosed(socket));
  expectRefusal();
}

TEST_F(ListenerTest, EmptyFrameIsRefused) {
  auto socket = knock();
  socket.sendFrame({}, {});
  EXPECT_TRUE(isClosed(socket));
  expectRefusal();
}

TEST_F(ListenerTest, OversizedFrameIsRefusedByItsLengthAlone) {
  for (const uint32_t size : {64U * 1024 + 1, 1U << 30, 0xffffffffU}) {
    ByteWriter writer;
    writer.number(size);
    auto socket = knock();
    sendRaw(socket, writer.take());
    EXPECT_TRUE(isClosed(socket)) << size;
  }
  expectWell();
}

TEST_F(ListenerTest, TruncatedFrameAndThenTheEndIsRefused) {
  const Bytes good = encode(goodHello());
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

TEST_F(ListenerTest, WrongTokenIsToldToBeAStranger) {
  auto hello = goodHello();
  hello.token[31] ^= std::byte{1};
  auto socket = knock();
  socket.sendFrame(encode(hello), {});
  const auto welcome = answerTo(socket);
  ASSERT_TRUE(welcome);
  EXPECT_EQ(welcome->verdict, Verdict::kStranger);
  expectRefusal();
}

TEST_F(ListenerTest, WrongTokensOfEveryKindAreRefused) {
  for (const size_t size : {0, 31, 33, 1000}) {
    auto hello = goodHello();
    hello.token.resize(size);
    auto socket = knock();
    socket.sendFrame(encode(hello), {});
    const auto welcome = answerTo(socket);
    ASSERT_TRUE(welcome) << size;
    EXPECT_EQ(welcome->verdict, Verdict::kStranger);
  }
  auto hello = goodHello();
  hello.targetInstance = world.rendezvous("first") ? randomBytes(16) : Bytes();
  auto socket = knock();
  socket.sendFrame(encode(hello), {});
  EXPECT_EQ(answerTo(socket)->verdict, Verdict::kStranger);
  expectWell();
}

TEST_F(ListenerTest, FrameThatComesByteByByteIsTaken) {
  auto hello = goodHello();
  hello.token[0] ^= std::byte{1};
  ByteWriter writer;
  writer.blob(encode(hello));
  auto socket = knock();
  for (const auto byte : writer.take()) {
    sendRaw(socket, {byte});
  }
  const auto welcome = answerTo(socket);
  ASSERT_TRUE(welcome);
  EXPECT_EQ(welcome->verdict, Verdict::kStranger);
}

TEST_F(ListenerTest, OtherProtocolVersionIsRefusedNamingBoth) {
  Bytes frame = encode(goodHello());
  frame[8] = std::byte{kProtocolVersion + 1};
  auto socket = knock();
  socket.sendFrame(frame, {});
  EXPECT_TRUE(isClosed(socket));
  expectRefusal();
  EXPECT_EQ(log.count("version " + std::to_string(kProtocolVersion + 1)), 1U)
      << log.all();
}

TEST_F(ListenerTest, GoodTokenWithAnUnknownRouteIsRefused) {
  auto hello = goodHello();
  hello.route = "pigeon";
  auto socket = knock();
  socket.sendFrame(encode(hello), {});
  const auto welcome = answerTo(socket);
  ASSERT_TRUE(welcome);
  EXPECT_EQ(welcome->verdict, Verdict::kRefused);
  expectWell();
}

TEST_F(ListenerTest, GoodTokenWithAMalformedOfferIsRefused) {
  shm::ShmTransport transport{Config{}};
  Transport::Context context;
  context.nonce = "0123456789abcdef";
  for (int kind = 0; kind < 6; ++kind) {
    auto offer = transport.offer(context);
    auto hello = goodHello();
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
        offer.blob[21] = std::byte{0x20};
        break;
      case 4: // an eventfd in place of the segment
        offer.fds.back() = UniqueFd(eventfd(0, EFD_CLOEXEC));
        break;
      default:
        offer.blob.resize(5000);
    }
    transport.withdraw(context);
    hello.blob = offer.blob;
    auto socket = knock();
    socket.sendFrame(encode(hello), offer.fds);
    const auto welcome = answerTo(socket);
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
    auto hello = goodHello();
    hello.nonce = context.nonce;
    auto offer = transport.offer(context);
    hello.blob = offer.blob;
    auto socket = knock();
    socket.sendFrame(encode(hello), offer.fds);
    ASSERT_TRUE(readable(socket));
    auto frame = socket.receiveFrame();
    ASSERT_TRUE(frame);
    const auto welcome = decodeWelcome(frame->bytes);
    ASSERT_EQ(welcome.verdict, Verdict::kAccepted) << welcome.text;
    const auto connection =
        transport.finish(context, {welcome.blob, std::move(frame->fds)});
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
  std::this_thread::sleep_for(milliseconds(50));
  const auto start = Clock::now();
  EXPECT_TRUE(world.passes(0, 1));
  // Silent guests end by themselves after ten.
  EXPECT_LT(Clock::now() - start, milliseconds(8000));
}

// It would take our leaving for our death.
TEST_F(ListenerTest, GuestThatWasAnsweredStaysWhenHundredsKnock) {
  auto socket = knock();
  ASSERT_TRUE(offerTo(socket));
  std::this_thread::sleep_for(milliseconds(1100)); // it has had time to speak
  std::vector<ControlSocket> idle;
  for (int i = 0; i < 300; ++i) {
    idle.push_back(knock());
  }
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_FALSE(socket.ended());
  socket.sendFrame(encode(Confirm{"n", {}, {}}), {});
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
      for (int j = 0; j < 8; ++j) {
        fds.emplace_back(eventfd(0, EFD_CLOEXEC));
      }
      socket.sendFrame(pattern(100), fds);
    }
  }
  // Fewer, where the handshake's own were still open then.
  EXPECT_TRUE(eventually([&] { return openDescriptors() <= before; }))
      << openDescriptors() << ", more than " << before;
  expectWell();
}

TEST_F(ListenerTest, BytesAfterTheHandshakeAreIgnored) {
  // What a peer's process says on the socket later is not an end, either.
  auto socket = knock();
  ASSERT_TRUE(offerTo(socket));
  EXPECT_EQ(world[0].engine->connections(), 0U) << "it is not confirmed yet";
  socket.sendFrame(encode(Confirm{"n", {}, {}}), {});
  const auto connected = [&] { return world[0].engine->connections() == 1; };
  ASSERT_TRUE(eventually(connected));
  sendRaw(socket, pattern(5000));
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_TRUE(connected());
  expectWell();
}

TEST_F(ListenerTest, NothingComesOfAProbe) {
  auto socket = knock();
  const auto welcome = offerTo(socket, true);
  ASSERT_TRUE(welcome);
  EXPECT_EQ(welcome->verdict, Verdict::kAccepted) << welcome->text;
  socket.sendFrame(encode(Confirm{"n", {}, {}}), {});
  EXPECT_TRUE(readable(socket)); // its end
  EXPECT_EQ(world[0].engine->connections(), 0U);
  expectWell();
}

} // namespace
} // namespace dlslime::testing
