// Messages over a socket, which may come late.
#include <cstring>
#include <future>
#include <random>

#include "fakes/peers/tcp_ends.h"
#include "transports/tcp/frame_format.h"

namespace dlslime::tcp {
namespace {

using namespace ::dlslime::testing;

constexpr size_t kMost = FrameStream::kMostPayloadBytes;
// Limit of bytes sent or taken by an end before the next poll().
constexpr size_t kMostPerPoll = 2 * kMost;

using TcpConnectionTest = TcpEnds;

TEST_F(TcpConnectionTest, MessagesOfAllSizesArriveInOrder) {
  openBoth();
  for (const size_t size : {size_t{0}, size_t{100}, size_t{9000}, kMost}) {
    one.events = other.events = {};
    one.stream(other, 30, size);
    other.stream(one, 30, size);
    pollUntil([&] {
      return one.events.messages.size() == 30 &&
          other.events.messages.size() == 30;
    });
    one.expectMessages(30, size);
    other.expectMessages(30, size);
  }
  EXPECT_EQ(one.connection->route(), "tcp");
  EXPECT_EQ(one.connection->maxPayload(), kMost);
}

TEST_F(TcpConnectionTest, SocketThatComesLateIsUsed) {
  auto [here, raw] = tcpEnds();
  std::promise<void> come;
  const auto socket = std::make_shared<SideSocket>(
      SideSocket{std::move(here), frameOf(headerOf(0, 100), pattern(100, 0))});
  open(one, [socket, wait = come.get_future().share()](TimePoint deadline) {
    EXPECT_GT(deadline, Clock::now());
    wait.wait();
    return std::move(*socket);
  });
  Bytes none;
  EXPECT_FALSE(one.connection->verify(none));
  EXPECT_FALSE(one.send(0)) << "there is nothing to send it by";
  EXPECT_FALSE(one.connection->poll(one.events, one.broken, 1));
  EXPECT_TRUE(one.broken.ok());
  EXPECT_EQ(one.connection->replaceable(), ReplaceAbility::When::kNever);
  come.set_value();
  ASSERT_TRUE(eventually([&] { return woken == 1; }));
  EXPECT_TRUE(one.connection->verify(none));
  // poll() returns true, so that refused messages are tried again.
  EXPECT_TRUE(one.connection->poll(one.events, one.broken, 64));
  EXPECT_TRUE(one.send(0));
  one.expectMessages(1);
  EXPECT_EQ(one.connection->replaceable(), ReplaceAbility::When::kWhole);
  EXPECT_TRUE(
      eventually([&raw = raw] { return readRaw(raw.get()).size() == 164; }));
}

TEST_F(TcpConnectionTest, SocketThatNeverComesBreaksIt) {
  open(one, [](TimePoint) -> SideSocket {
    throw Error(ErrorCode::kTimeout, "the peer did not come");
  });
  ASSERT_TRUE(eventually([&] { return woken == 1; }));
  Bytes none;
  EXPECT_THROW(one.connection->verify(none), Error);
  EXPECT_TRUE(one.connection->poll(one.events, one.broken, 64));
  EXPECT_EQ(one.broken.code(), ErrorCode::kTransportFailed);
  EXPECT_NE(
      one.broken.message().find("the peer did not come"), std::string::npos)
      << one.broken.message();
  EXPECT_FALSE(one.send(0));
  EXPECT_TRUE(one.connection->drained());
  EXPECT_TRUE(one.connection->allSent());
}

TEST_F(TcpConnectionTest, WantOfDescriptorsIsToldAsThat) {
  open(one, [](TimePoint) -> SideSocket {
    throw Error(ErrorCode::kExhausted, "no descriptors");
  });
  ASSERT_TRUE(eventually([&] { return woken == 1; }));
  Bytes none;
  try {
    one.connection->verify(none);
    ADD_FAILURE() << "it is there";
  } catch (const Error& error) {
    EXPECT_EQ(error.status().code(), ErrorCode::kExhausted);
  }
}

TEST_F(TcpConnectionTest, ThreadThatWaitsOutlivesItAndClosesTheSocket) {
  auto [here, raw] = tcpEnds();
  const auto socket =
      std::make_shared<SideSocket>(SideSocket{std::move(here), {}});
  std::promise<void> come;
  open(one, [socket, wait = come.get_future().share()](TimePoint) {
    wait.wait();
    return std::move(*socket);
  });
  const auto start = Clock::now();
  EXPECT_TRUE(one.connection->close(false)) << "nothing was sent";
  one.connection.reset();
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(5));
  come.set_value();
  EXPECT_TRUE(eventually([&, fd = raw.get()] { return isOver(fd); }));
}

TEST_F(TcpConnectionTest, PeerThatClosesBeforeTheSocketIsThereEndsIt) {
  std::promise<void> come;
  open(one, [wait = come.get_future().share()](TimePoint) -> SideSocket {
    wait.wait();
    throw Error(ErrorCode::kTimeout, "the peer did not come");
  });
  EXPECT_FALSE(one.connection->drained());
  one.connection->peerClosed();
  EXPECT_TRUE(one.connection->drained());
  EXPECT_TRUE(one.send(0)) << "the peer does not read it";
  EXPECT_TRUE(one.connection->poll(one.events, one.broken, 64));
  EXPECT_NE(
      one.broken.message().find("before it was connected"), std::string::npos)
      << one.broken.message();
  come.set_value();
}

TEST_F(TcpConnectionTest, WhatOnePollSendsIsBounded) {
  openBoth();
  size_t sent = 0, bytes = 0;
  while (one.send(sent, 10000)) {
    bytes += sizeof(MessageHeader) + 10000;
    ++sent;
  }
  EXPECT_LE(bytes, kMostPerPoll);
  EXPECT_GT(bytes, kMostPerPoll / 2);
  EXPECT_TRUE(one.connection->poll(one.events, one.broken, 64))
      << "there is room again";
  EXPECT_TRUE(one.send(sent, 10000));
  pollUntil([&] { return other.events.messages.size() == sent + 1; });
  other.expectMessages(sent + 1, 10000);
}

TEST_F(TcpConnectionTest, WhatOnePollTakesIsBoundedAndNothingIsLeft) {
  openBoth();
  one.stream(other, 4, 0); // polls both ends
  other.events = {};
  std::thread sending([&] {
    for (uint64_t sent = 0; sent < 40;) {
      sent += one.send(sent, kMost) ? 1 : 0;
      one.poll();
    }
    EXPECT_TRUE(eventually([&] {
      one.poll();
      return one.connection->allSent();
    }));
  });
  EXPECT_TRUE(eventually([&] {
    const auto before = other.events.messages.size();
    other.connection->poll(other.events, other.broken, kMessagesPerPoll);
    EXPECT_LE(other.events.messages.size(), before + 3);
    return other.events.messages.size() == 40;
  }));
  sending.join();
  other.expectMessages(40, kMost);
}

TEST_F(TcpConnectionTest, FramesThatWereGivenUpAreTakenInBoundedPartsToo) {
  auto ends = tcpEnds();
  open(one, std::move(ends[0]));
  auto header = headerOf(0, kMost);
  header.payloadSize |= kVerdictFollows;
  auto given = frameOf(header, pattern(kMost + sizeof(kVoid)));
  std::memcpy(&given[given.size() - sizeof(kVoid)], &kVoid, sizeof(kVoid));
  Bytes all;
  for (int i = 0; i < 64; ++i) {
    all.insert(all.end(), given.begin(), given.end());
  }
  const auto last = frameOf(headerOf(0, 100), pattern(100, 0));
  all.insert(all.end(), last.begin(), last.end());
  size_t sent = 0, polls = 0;
  EXPECT_TRUE(eventually([&] {
    sent += writeRaw(ends[1].get(), ByteSpan(all).subspan(sent));
    ++polls;
    one.connection->poll(one.events, one.broken, kMessagesPerPoll);
    return !one.events.messages.empty();
  }));
  EXPECT_GE(polls, all.size() / (2 * kMostPerPoll + kIncomingBytes));
  one.expectMessages(1);
}

TEST_F(TcpConnectionTest, PollTakesNoMoreMessagesThanItMay) {
  openBoth();
  one.stream(one, 100);
  size_t most = 0;
  EXPECT_TRUE(eventually([&] {
    const auto before = other.events.messages.size();
    other.connection->poll(other.events, other.broken, 3);
    most = std::max(most, other.events.messages.size() - before);
    return other.events.messages.size() == 100;
  }));
  EXPECT_EQ(most, 3U);
  other.expectMessages(100);
}

TEST_F(TcpConnectionTest, BatchGoesOutAtItsEnd) {
  auto ends = tcpEnds();
  open(one, std::move(ends[0]));
  one.connection->beginBatch();
  for (uint64_t i = 0; i < 10; ++i) {
    ASSERT_TRUE(one.send(i));
  }
  one.poll();
  EXPECT_TRUE(readRaw(ends[1].get()).empty());
  EXPECT_FALSE(one.connection->allSent());
  one.connection->endBatch();
  Bytes all;
  EXPECT_TRUE(eventually([&] {
    const auto some = readRaw(ends[1].get());
    all.insert(all.end(), some.begin(), some.end());
    return all.size() == 1640;
  }));
  // A large message takes along the messages before.
  one.connection->beginBatch();
  ASSERT_TRUE(one.send(0));
  ASSERT_TRUE(one.send(1, 20000));
  all.clear();
  EXPECT_TRUE(eventually([&] {
    const auto some = readRaw(ends[1].get());
    all.insert(all.end(), some.begin(), some.end());
    return all.size() == 164 + 20064;
  }));
  one.connection->endBatch();
}

TEST_F(TcpConnectionTest, FrameThatAnnouncesTooMuchBreaksIt) {
  for (const size_t size : {kMost + 1, size_t{0x7fffffff}}) {
    one = {};
    auto ends = tcpEnds();
    open(one, std::move(ends[0]));
    writeRaw(ends[1].get(), frameOf(headerOf(0, 100), pattern(100, 0)));
    writeRaw(ends[1].get(), frameOf(headerOf(1, size), pattern(1000)));
    EXPECT_TRUE(eventually([&] {
      one.poll();
      return !one.broken.ok();
    }));
    one.expectMessages(1);
    EXPECT_EQ(one.broken.code(), ErrorCode::kTransportFailed);
    EXPECT_NE(
        one.broken.message().find(std::to_string(size)), std::string::npos)
        << one.broken.message();
    EXPECT_TRUE(one.send(0)) << "it is lost";
  }
}

TEST_F(TcpConnectionTest, RandomBytesNeverCrash) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 50; ++round) {
    one = {};
    auto ends = unixEnds();
    open(one, std::move(ends[0]));
    for (int i = 0; i < 20; ++i) {
      Bytes bytes(64 + random() % 300);
      for (auto& byte : bytes) {
        byte = static_cast<std::byte>(random());
      }
      bytes[62] &= std::byte{static_cast<uint8_t>(random() % 3)};
      bytes[63] = {};
      writeRaw(ends[1].get(), bytes);
      one.poll();
    }
    ends[1].reset();
    EXPECT_TRUE(eventually([&] {
      one.poll();
      return !one.broken.ok();
    }));
  }
}

} // namespace
} // namespace dlslime::tcp
