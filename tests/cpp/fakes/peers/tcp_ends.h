#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "fakes/peers/stream_sockets.h"
#include "fakes/world.h"
#include "transports/tcp/tcp_connection.h"

namespace dlslime::testing {

class TcpRecorder final : public ConnectionEvents {
 public:
  void onMessage(const MessageHeader& header, ByteSpan payload) override {
    EXPECT_EQ(header.payloadSize, payload.size());
    messages.emplace_back(header, Bytes(payload.begin(), payload.end()));
  }
  void onPulled(uint64_t /*pullId*/, const Status& /*status*/) override {}
  void onParted() override {
    ++parted;
  }
  std::vector<std::pair<MessageHeader, Bytes>> messages;
  int parted = 0;
};

// A connection and the events told.
struct TcpEnd {
  std::unique_ptr<tcp::TcpConnection> connection;
  TcpRecorder events;
  Status broken;

  // Polls until nothing happens or the connection is broken.
  void poll(int most = kMessagesPerPoll) {
    while (broken.ok() && connection->poll(events, broken, most)) {
    }
  }
  bool send(uint64_t sequence, size_t size = 100) {
    return connection->send(
        headerOf(sequence), pattern(size, unsigned(sequence)));
  }
  // Sends `count` messages, polling both ends in between.
  void stream(TcpEnd& other, uint64_t count, size_t size = 100) {
    uint64_t sent = 0;
    EXPECT_TRUE(eventually([&] {
      while (sent < count && send(sent, size)) {
        ++sent;
      }
      poll();
      other.poll();
      return sent == count;
    }));
  }
  void expectMessages(size_t count, size_t size = 100) const {
    ASSERT_EQ(events.messages.size(), count);
    for (size_t i = 0; i < count; ++i) {
      EXPECT_EQ(events.messages[i].first.sequence, i);
      EXPECT_TRUE(
          sameBytes(events.messages[i].second, pattern(size, unsigned(i))))
          << i;
    }
  }
};

// Two connections over TCP, polled by the test in a single thread.
class TcpEnds : public ::testing::Test {
 protected:
  ~TcpEnds() override {
    // The threads waiting for sockets may outlive the connections, but not the
    // fixture.
    EXPECT_TRUE(eventually([&] { return woken == opened; }));
  }
  void open(TcpEnd& end, OpenSideSocket how) {
    ++opened;
    end.connection = std::make_unique<tcp::TcpConnection>(
        ready, tcp::PendingSocket::open(std::move(how), [this, set = ready] {
          set->wake();
          ++woken;
        }));
  }
  void open(TcpEnd& end, UniqueFd fd, Bytes early = {}) {
    const auto socket = std::make_shared<SideSocket>(
        SideSocket{std::move(fd), std::move(early)});
    open(end, [socket](TimePoint /*deadline*/) { return std::move(*socket); });
    Bytes none;
    EXPECT_TRUE(eventually([&] { return end.connection->verify(none); }));
    end.poll();
  }
  void openBoth(int buffer = 0) {
    auto ends = tcpEnds(buffer);
    open(one, std::move(ends[0]));
    open(other, std::move(ends[1]));
  }
  void pollUntil(const std::function<bool()>& condition) {
    EXPECT_TRUE(eventually([&] {
      one.poll();
      if (other.connection) {
        other.poll();
      }
      return condition();
    }));
  }

  std::shared_ptr<tcp::ReadySet> ready = std::make_shared<tcp::ReadySet>();
  std::atomic<int> opened{0}, woken{0};
  TcpEnd one, other;
};

} // namespace dlslime::testing
