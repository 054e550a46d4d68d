// Frames over a socket: any portions of bytes are put together, frames without
// room are refused, and every end is told.
#include "transports/tcp/frame_stream.h"

#include <gtest/gtest.h>

#include "fakes/peers/stream_sockets.h"
#include "fakes/world.h"

namespace dlslime::tcp {
namespace {

using namespace ::dlslime::testing;

constexpr size_t kMost = FrameStream::kMostPayloadBytes;
constexpr int kSmallBuffer = 4096;

struct Received {
  MessageHeader header;
  Bytes payload;
};

class FrameStreamTest : public ::testing::TestWithParam<bool> {
 protected:
  static bool overTcp() {
    return GetParam();
  }
  static SocketEnds ends(int buffer = 0) {
    return overTcp() ? tcpEnds(buffer) : unixEnds(buffer);
  }
  static FrameStream streamOf(UniqueFd fd, Bytes early = {}) {
    return FrameStream({std::move(fd), std::move(early)});
  }
  // Takes all frames that have come.
  void take(FrameStream& stream) {
    do {
      while (const auto frame = stream.next()) {
        received.push_back(
            {frame->header,
             Bytes(frame->payload.begin(), frame->payload.end())});
      }
    } while (stream.fill());
  }
  void takeUntil(FrameStream& stream, size_t count) {
    EXPECT_TRUE(eventually([&] {
      take(stream);
      return received.size() >= count || !stream.broken().ok();
    }));
    EXPECT_EQ(received.size(), count);
  }
  // Puts frames until a put is refused.
  static size_t fillUp(FrameStream& stream, size_t size) {
    size_t count = 0;
    while (stream.put(headerOf(count), pattern(size, unsigned(count)), false)) {
      ++count;
    }
    return count;
  }
  void expectPattern(size_t index, size_t size) {
    EXPECT_EQ(received.at(index).header.sequence, index);
    EXPECT_EQ(received.at(index).header.payloadSize, size);
    EXPECT_TRUE(
        sameBytes(received.at(index).payload, pattern(size, unsigned(index))))
        << index;
  }

  std::vector<Received> received;
};

TEST_P(FrameStreamTest, EverySplitIsPutTogether) {
  auto [raw, end] = ends();
  auto stream = streamOf(std::move(end));
  size_t count = 0;
  for (const size_t size : {0, 1, 63, 64, 65, 130}) {
    const auto length = sizeof(MessageHeader) + size;
    for (size_t cut = 0; cut < length; ++cut) {
      const auto frame =
          frameOf(headerOf(count, size), pattern(size, unsigned(count)));
      for (const auto part :
           {ByteSpan(frame).first(cut), ByteSpan(frame).subspan(cut)}) {
        take(stream);
        ASSERT_EQ(received.size(), count);
        ASSERT_EQ(writeRaw(raw.get(), part), part.size());
      }
      takeUntil(stream, ++count);
      expectPattern(count - 1, size);
    }
  }
}

TEST_P(FrameStreamTest, BytesThatComeOneByOneAreAFrameAtTheLast) {
  auto [raw, end] = ends();
  auto stream = streamOf(std::move(end));
  for (size_t i = 0; i < 3; ++i) {
    for (const auto byte :
         frameOf(headerOf(i, 200), pattern(200, unsigned(i)))) {
      take(stream);
      ASSERT_EQ(received.size(), i);
      ASSERT_EQ(writeRaw(raw.get(), ByteSpan(&byte, 1)), 1U);
    }
    takeUntil(stream, i + 1);
    expectPattern(i, 200);
  }
}

TEST_P(FrameStreamTest, FramesOfAllSizesPassSmallBuffersInOrder) {
  auto [one, other] = ends(kSmallBuffer);
  auto sender = streamOf(std::move(one)), receiver = streamOf(std::move(other));
  std::vector<size_t> sizes;
  for (size_t i = 0; i < 60; ++i) {
    sizes.push_back(i % 12 == 0 ? kMost - i / 12 : (i * 997) % 9000);
  }
  size_t sent = 0;
  EXPECT_TRUE(eventually([&] {
    while (sent < sizes.size() &&
           sender.put(
               headerOf(sent),
               pattern(sizes[sent], unsigned(sent)),
               sent % 3 == 0)) {
      ++sent;
    }
    sender.flush();
    take(receiver);
    return received.size() == sizes.size();
  }));
  ASSERT_EQ(received.size(), sizes.size());
  for (size_t i = 0; i < sizes.size(); ++i) {
    expectPattern(i, sizes[i]);
  }
  EXPECT_TRUE(sender.broken().ok() && receiver.broken().ok());
}

TEST_P(FrameStreamTest, ReadOfManyFramesGivesEachInItsTurn) {
  auto [raw, end] = ends();
  auto stream = streamOf(std::move(end));
  Bytes all;
  for (size_t i = 0; i < 100; ++i) {
    const auto frame = frameOf(headerOf(i, i), pattern(i, unsigned(i)));
    all.insert(all.end(), frame.begin(), frame.end());
  }
  ASSERT_EQ(writeRaw(raw.get(), all), all.size());
  ASSERT_TRUE(eventually([&] { return stream.fill(); }));
  takeUntil(stream, 100);
  for (size_t i = 0; i < 100; ++i) {
    expectPattern(i, i);
  }
}

TEST_P(FrameStreamTest, BytesThatCameEarlyAreTheFirst) {
  for (const size_t size : {size_t{0}, size_t{100}, kMost}) {
    received.clear();
    auto [raw, end] = ends();
    Bytes bytes;
    for (size_t i = 0; i < 6; ++i) {
      const auto frame = frameOf(headerOf(i, size), pattern(size, unsigned(i)));
      bytes.insert(bytes.end(), frame.begin(), frame.end());
    }
    const size_t cut = bytes.size() - 30; // also more than a single read takes
    Bytes early(bytes.begin(), bytes.begin() + ptrdiff_t(cut));
    auto stream = streamOf(std::move(end), std::move(early));
    take(stream);
    ASSERT_EQ(received.size(), 5U);
    ASSERT_EQ(writeRaw(raw.get(), ByteSpan(bytes).subspan(cut)), 30U);
    takeUntil(stream, 6);
    for (size_t i = 0; i < 6; ++i) {
      expectPattern(i, size);
    }
  }
}

TEST_P(FrameStreamTest, OneByteTooManyIsRefusedWithBothNumbers) {
  for (const size_t size : {kMost, kMost + 1, size_t{0x7fffffff}}) {
    received.clear();
    auto [raw, end] = ends();
    auto stream = streamOf(std::move(end));
    ASSERT_EQ(writeRaw(raw.get(), frameOf(headerOf(0), {})), 64U);
    ASSERT_EQ(writeRaw(raw.get(), frameOf(headerOf(1, size), {})), 64U);
    ASSERT_TRUE(eventually([&] {
      take(stream);
      return received.size() == 1 && (size == kMost || !stream.broken().ok());
    }));
    if (size == kMost) { // the frame is taken
      const auto payload = pattern(size, 1);
      size_t written = 0;
      ASSERT_TRUE(eventually([&, &raw = raw] {
        written += writeRaw(raw.get(), ByteSpan(payload).subspan(written));
        take(stream);
        return received.size() == 2;
      }));
      expectPattern(1, size);
      continue;
    }
    const auto& text = stream.broken().message();
    EXPECT_EQ(stream.broken().code(), ErrorCode::kTransportFailed);
    EXPECT_NE(text.find(std::to_string(size)), std::string::npos) << text;
    EXPECT_NE(text.find(std::to_string(kMost)), std::string::npos) << text;
    writeRaw(raw.get(), frameOf(headerOf(2), {}));
    take(stream);
    EXPECT_EQ(received.size(), 1U) << "nothing comes behind it";
  }
}

TEST_P(FrameStreamTest, FullSocketRefusesUntilThePeerReads) {
  for (const size_t size : {size_t{0}, size_t{5000}, kMost}) {
    received.clear();
    auto [one, other] = ends(kSmallBuffer);
    auto sender = streamOf(std::move(one));
    auto receiver = streamOf(std::move(other));
    size_t sent = fillUp(sender, size);
    EXPECT_GT(sent, 1U);
    EXPECT_LE(sender.unsent(), 2 * (kMost + sizeof(MessageHeader)));
    EXPECT_TRUE(sender.broken().ok());
    ASSERT_TRUE(eventually([&] {
      take(receiver);
      sender.flush();
      return sender.put(headerOf(sent), pattern(size, unsigned(sent)), false);
    }));
    ASSERT_TRUE(eventually([&] {
      sender.flush();
      take(receiver);
      return received.size() == sent + 1;
    }));
    for (size_t i = 0; i <= sent; ++i) {
      expectPattern(i, size);
    }
  }
}

TEST_P(FrameStreamTest, WhatWaitsGoesOutTogetherAndFirst) {
  auto [one, raw] = ends();
  auto sender = streamOf(std::move(one));
  for (size_t i = 0; i < 10; ++i) {
    ASSERT_TRUE(sender.put(headerOf(i), pattern(10, unsigned(i)), true));
  }
  EXPECT_TRUE(readRaw(raw.get()).empty());
  EXPECT_EQ(sender.unsent(), 10 * (sizeof(MessageHeader) + 10));
  ASSERT_TRUE(sender.put(headerOf(10), pattern(10, 10), false));
  EXPECT_EQ(sender.unsent(), 0U);
  auto receiver = streamOf(std::move(raw));
  takeUntil(receiver, 11);
  for (size_t i = 0; i < 11; ++i) {
    expectPattern(i, 10);
  }
  EXPECT_FALSE(sender.flush()) << "nothing is left";
  ASSERT_TRUE(sender.put(headerOf(11), pattern(10, 11), true));
  EXPECT_TRUE(sender.flush());
  takeUntil(receiver, 12);
}

TEST_P(FrameStreamTest, WaitingMessagesAreRefusedWhereTheyWouldBeTooMany) {
  auto [one, other] = ends();
  auto sender = streamOf(std::move(one)), receiver = streamOf(std::move(other));
  size_t count = 0;
  while (sender.put(headerOf(count), pattern(1000, unsigned(count)), true)) {
    ++count;
  }
  const size_t most = 2 * (kMost + sizeof(MessageHeader));
  EXPECT_EQ(count, most / (1000 + sizeof(MessageHeader)));
  // putLast() goes behind the full queue.
  sender.putLast(headerOf(count));
  EXPECT_TRUE(eventually([&] {
    sender.flush();
    take(receiver);
    return received.size() == count + 1;
  }));
  expectPattern(count, 0);
}

TEST_P(FrameStreamTest, LastOneIsTakenByAFullSocketToo) {
  auto [one, other] = ends(kSmallBuffer);
  auto sender = streamOf(std::move(one)), receiver = streamOf(std::move(other));
  const size_t sent = fillUp(sender, 0);
  sender.putLast(headerOf(sent));
  EXPECT_TRUE(eventually([&] {
    sender.flush();
    take(receiver);
    return received.size() == sent + 1;
  }));
  expectPattern(sent, 0);
}

TEST_P(FrameStreamTest, EndOfThePeerIsToldBehindAllThatItHasSent) {
  auto [one, other] = ends();
  auto receiver = streamOf(std::move(other));
  {
    auto sender = streamOf(std::move(one));
    for (size_t i = 0; i < 20; ++i) {
      ASSERT_TRUE(sender.put(headerOf(i), pattern(2000, unsigned(i)), false));
    }
  }
  EXPECT_TRUE(eventually([&] {
    take(receiver);
    return !receiver.broken().ok();
  }));
  ASSERT_EQ(received.size(), 20U);
  EXPECT_EQ(receiver.broken().code(), ErrorCode::kPeerFailed);
  EXPECT_NE(receiver.broken().message().find("closed"), std::string::npos)
      << receiver.broken().message();
  EXPECT_FALSE(receiver.fill());
  EXPECT_TRUE(receiver.put(headerOf(0), {}, false)) << "it is lost";
  EXPECT_EQ(receiver.unsent(), 0U);
  EXPECT_TRUE(receiver.allSent());
}

// A sender may learn of the end before having read all frames.
TEST_P(FrameStreamTest, WhatHasComeIsReadThoughNothingGoesOutAnyMore) {
  auto [one, other] = ends();
  auto receiver = streamOf(std::move(other));
  {
    auto sender = streamOf(std::move(one));
    for (size_t i = 0; i < 20; ++i) {
      ASSERT_TRUE(sender.put(headerOf(i), pattern(2000, unsigned(i)), false));
    }
  }
  for (int i = 0; i < 20; ++i) { // the first makes the peer reset
    EXPECT_TRUE(receiver.put(headerOf(0), pattern(10), false));
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_TRUE(eventually([&] {
    take(receiver);
    return !receiver.broken().ok();
  }));
  ASSERT_EQ(received.size(), 20U);
  for (size_t i = 0; i < 20; ++i) {
    expectPattern(i, 2000);
  }
}

TEST_P(FrameStreamTest, AllIsSentOnceThePeersHostHasIt) {
  auto [one, other] = ends(kSmallBuffer);
  auto sender = streamOf(std::move(one)), receiver = streamOf(std::move(other));
  EXPECT_TRUE(sender.allSent());
  fillUp(sender, 3000);
  EXPECT_FALSE(sender.allSent());
  sender.dropUnsent();
  EXPECT_EQ(sender.unsent(), 0U);
  EXPECT_FALSE(sender.allSent()) << "the socket has some";
  EXPECT_TRUE(eventually([&] {
    take(receiver);
    return sender.allSent();
  }));
}

INSTANTIATE_TEST_SUITE_P(
    Over,
    FrameStreamTest,
    ::testing::Bool(),
    [](const auto& instance) {
      return std::string(instance.param ? "Tcp" : "Unix");
    });

TEST(FrameStreamReset, IsToldWithItsReasonAndReleasesWhatWaits) {
  auto [one, other] = tcpEnds(kSmallBuffer);
  FrameStream stream({std::move(one), {}});
  while (stream.put(headerOf(1), pattern(5000), false)) {
  }
  resetAtClose(other.get());
  other.reset();
  EXPECT_TRUE(eventually([&] {
    while (stream.next()) {
    }
    stream.fill();
    return !stream.broken().ok();
  }));
  const auto& text = stream.broken().message();
  EXPECT_EQ(stream.broken().code(), ErrorCode::kPeerFailed);
  EXPECT_NE(text.find("TCP: cannot receive: "), std::string::npos) << text;
  EXPECT_EQ(stream.unsent(), 0U);
  EXPECT_TRUE(stream.allSent());
  EXPECT_FALSE(stream.flush());
}

} // namespace
} // namespace dlslime::tcp
