// Ends of connections over TCP: severed, closed, or with the peer.
#include "engine/bootstrap/control_socket.h"
#include "fakes/peers/tcp_ends.h"

namespace dlslime::tcp {
namespace {

using namespace ::dlslime::testing;

using TcpEnding = TcpEnds;

TEST_F(TcpEnding, SeveredByBothNothingIsLost) {
  for (const int buffer : {0, 4096}) {
    one = {}, other = {};
    openBoth(buffer);
    size_t sent[2] = {};
    for (int i = 0; i < 2; ++i) {
      auto& end = i == 0 ? one : other;
      while (end.send(sent[i], 20000)) {
        ++sent[i];
      }
      end.connection->sever();
      EXPECT_FALSE(end.connection->drained());
    }
    pollUntil([&] {
      return one.connection->drained() && other.connection->drained();
    });
    one.expectMessages(sent[1], 20000);
    other.expectMessages(sent[0], 20000);
    EXPECT_EQ(one.events.parted, 1);
    EXPECT_EQ(other.events.parted, 1);
    EXPECT_TRUE(one.broken.ok() && other.broken.ok());
    EXPECT_TRUE(one.connection->close(false));
  }
}

TEST_F(TcpEnding, EndThatLearnsOfThePartingMayFinish) {
  openBoth();
  one.stream(other, 5);
  one.connection->sever();
  pollUntil([&] { return other.events.parted == 1; });
  other.stream(one, 7);
  EXPECT_FALSE(one.connection->drained());
  other.connection->sever();
  pollUntil(
      [&] { return one.connection->drained() && other.connection->drained(); });
  one.expectMessages(7);
  other.expectMessages(5);
}

TEST_F(TcpEnding, SeveredFromAPeerThatDiesItIsDrained) {
  openBoth();
  one.connection->sever();
  other.connection.reset();
  EXPECT_TRUE(eventually([&] {
    one.poll();
    return !one.broken.ok();
  }));
  EXPECT_TRUE(one.connection->drained());
}

TEST_F(TcpEnding, NothingIsTakenBehindTheParting) {
  auto ends = tcpEnds();
  open(one, std::move(ends[0]));
  MessageHeader parting;
  writeRaw(ends[1].get(), frameOf(headerOf(0, 100), pattern(100, 0)));
  writeRaw(ends[1].get(), frameOf(parting, {}));
  writeRaw(ends[1].get(), frameOf(headerOf(1), {}));
  ends[1].reset();
  EXPECT_TRUE(eventually([&] {
    one.poll();
    return !one.broken.ok();
  }));
  one.expectMessages(1);
  EXPECT_EQ(one.events.parted, 1);
}

TEST_F(TcpEnding, WhatAPeerSentBeforeItClosedIsPolled) {
  openBoth();
  one.stream(one, 30, 1000);
  EXPECT_TRUE(eventually([&] { return one.connection->close(false); }));
  one.connection.reset();
  other.connection->peerClosed();
  EXPECT_TRUE(other.send(0)) << "the peer does not read it";
  EXPECT_FALSE(other.connection->drained());
  EXPECT_TRUE(eventually([&] {
    other.poll();
    return other.connection->drained();
  }));
  other.expectMessages(30, 1000);
  EXPECT_FALSE(other.broken.ok());
}

// A failed send must not keep an end from reading.
TEST_F(TcpEnding, WhatAPeerSentBeforeItDiedIsPolled) {
  openBoth();
  one.stream(one, 30, 1000);
  one.connection.reset();
  for (uint64_t i = 0; i < 20; ++i) {
    EXPECT_TRUE(other.send(i));
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_TRUE(eventually([&] {
    other.poll();
    return !other.broken.ok();
  }));
  other.expectMessages(30, 1000);
}

TEST_F(TcpEnding, CloseWaitsForWhatThePeerHasNotGot) {
  openBoth(4096);
  uint64_t sent = 0;
  while (one.send(sent, 20000)) {
    ++sent;
  }
  EXPECT_FALSE(one.connection->close(false));
  EXPECT_TRUE(one.connection->close(true));
  EXPECT_TRUE(eventually([&] {
    one.poll();
    other.poll();
    return one.connection->close(false);
  }));
  pollUntil([&] { return other.events.messages.size() == sent; });
}

// A merely stopped peer acknowledges, but takes nothing until continued.
TEST_F(TcpEnding, SilenceCountsOnlyWhereThePeerIsGone) {
  auto ends = tcpEnds();
  const int fd = ends[0].get();
  open(one, ControlSocket(std::move(ends[0])).release().fd);
  const auto most = [&] {
    int value = -1;
    socklen_t size = sizeof(value);
    EXPECT_EQ(getsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &value, &size), 0);
    return value;
  };
  EXPECT_EQ(most(), 120'000);
  one.connection->peerClosed();
  EXPECT_EQ(most(), 5'000);
}

TEST_F(TcpEnding, CloseSendsWhatTheSocketHadNoRoomFor) {
  openBoth(4096);
  uint64_t sent = 0;
  while (one.send(sent, 20000)) {
    ++sent;
  }
  EXPECT_TRUE(eventually([&] {
    other.poll();
    return one.connection->close(false);
  }));
  EXPECT_TRUE(eventually([&] {
    other.poll();
    return other.events.messages.size() == sent;
  }));
  other.expectMessages(sent, 20000);
}

} // namespace
} // namespace dlslime::tcp
