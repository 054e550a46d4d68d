// Strangers at a process's socket: refused and logged, without further effect.
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstring>
#include <random>

#include "base/bytes.h"
#include "base/random.h"
#include "engine/bootstrap/handshake_limits.h"
#include "engine/peer/group.h"
#include "fakes/peers/knocking.h"

namespace dlslime::testing {
namespace {

using ListenerTest = KnockingTest;

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
      case 3: // rings of a size different from the segment's
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

// A peer that has the token, connects properly, and then sends nonsense.
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

TEST_F(ListenerTest, HundredsOfIdleConnectionsKeepNoPeerOut) {
  std::vector<ControlSocket> idle;
  for (int i = 0; i < 400; ++i) {
    idle.push_back(knock());
    idle.push_back(ControlSocket::connectTo(world[1].engine->socketName()));
  }
  EXPECT_TRUE(world.passes(0, 1));
  EXPECT_TRUE(eventually([&] {
    return std::all_of(idle.begin(), idle.end(), hasHungUp);
  })) << "silent ones end by themselves after a second";
}

// The pid must be the kernel's and not the peer's claim: else the process would
// access the memory of any third process.
TEST_F(ListenerTest, PidThatAPeerClaimsIsNotBelieved) {
  shm::ShmTransport transport{Config{}};
  Transport::Context context;
  context.nonce = "n";
  context.initiator = true;
  context.peerPid = static_cast<uint32_t>(getpid());
  auto peer = initiator();
  const auto offer = transport.offer(context);
  peer.hello.nonce = context.nonce;
  peer.hello.blob = offer.blob;
  peer.hello.self.pid = static_cast<uint32_t>(getppid());
  const auto welcome = peer.ask(offer.fds);
  ASSERT_TRUE(welcome);
  ASSERT_EQ(welcome->verdict, Verdict::kAccepted) << welcome->text;
  const auto connection =
      transport.finish(context, {welcome->blob, std::move(peer.received)});
  Confirm confirm{context.nonce, {}, {}};
  peer.confirm(confirm);
  auto& [engine, group] = world[0];
  MessageHeader join;
  join.type = MessageType::kJoin;
  join.sequence = 1;
  join.group = record.group;
  join.source = 1;
  join.id = 5;
  join.offset = group->epoch();
  ASSERT_TRUE(connection->send(join, {}));
  const auto pid = [&engine = engine, &group = group] {
    try {
      return engine->peerPid(*group, 1);
    } catch (const Error&) {
      return 0U; // not joined yet
    }
  };
  EXPECT_TRUE(eventually([&] { return pid() != 0; }));
  EXPECT_EQ(pid(), static_cast<uint32_t>(getpid()));
}

// Each connection keeps a channel and descriptors.
TEST_F(ListenerTest, ConnectionsOfOneProcessAreFew) {
  ASSERT_TRUE(world.passes(0, 1)); // counts, too: same process
  const auto most = HandshakeLimits::ofProcess().connectionsOfOneProcess;
  std::vector<Initiator> members;
  const auto come = [&] {
    members.push_back(initiator());
    const auto welcome = offerBy(members.back());
    EXPECT_TRUE(welcome);
    return welcome.value_or(Welcome{});
  };
  const auto connected = [&](size_t count) {
    return eventually([&] { return world[0].engine->connections() == count; });
  };
  for (size_t count = 2; count <= most; ++count) {
    ASSERT_EQ(come().verdict, Verdict::kAccepted) << count;
    members.back().confirm({"n", {}, {}});
    ASSERT_TRUE(connected(count)) << count;
  }
  const auto refused = come();
  EXPECT_EQ(refused.verdict, Verdict::kLater);
  EXPECT_NE(refused.text.find("may have no more"), std::string::npos)
      << refused.text;
  EXPECT_TRUE(world.passes(0, 1));
  members.clear();
  ASSERT_TRUE(connected(1)) << "those that have ended are gone";
  EXPECT_EQ(come().verdict, Verdict::kAccepted);
}

// Unfinished handshakes of a process must leave room for further processes.
TEST_F(ListenerTest, UnfinishedHandshakesOfOneProcessAreFew) {
  std::vector<Initiator> unfinished;
  auto verdict = Verdict::kAccepted;
  while (verdict == Verdict::kAccepted && unfinished.size() < 200) {
    unfinished.push_back(initiator());
    const auto welcome = offerBy(unfinished.back());
    ASSERT_TRUE(welcome) << unfinished.size();
    verdict = welcome->verdict;
  }
  EXPECT_EQ(verdict, Verdict::kLater);
  EXPECT_EQ(
      unfinished.size(), HandshakeLimits::ofProcess().provenOfOneSource + 1);
}

// An answered peer would take a closed socket for the process's death.
TEST_F(ListenerTest, PeerThatWasAnsweredStaysWhenHundredsKnock) {
  auto peer = initiator();
  ASSERT_TRUE(offerBy(peer));
  std::vector<ControlSocket> idle;
  for (int i = 0; i < 300; ++i) {
    idle.push_back(knock());
  }
  EXPECT_TRUE(eventually([&] { return hasHungUp(idle.front()); }));
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
  // Fewer, if descriptors of the handshake were still open at the first count.
  EXPECT_TRUE(eventually([&] { return openDescriptors() <= before; }))
      << openDescriptors() << ", more than " << before;
  expectWell();
}

TEST_F(ListenerTest, BytesAfterTheHandshakeAreIgnored) {
  // Later bytes on the socket are not an end of the stream.
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

} // namespace
} // namespace dlslime::testing
