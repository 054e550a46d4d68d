// Order of sending over a connection that takes little at a time.
#include <gtest/gtest.h>

#include "fakes/peers/scripted_channel.h"

namespace dlslime::testing {
namespace {

// A large message requested by the peer, and a large read by the peer.
class ChannelTurns : public ScriptedChannel {
 protected:
  ChannelTurns() : send(GuardedOperation::send(1, 5, pattern(4 << 20))) {
    endpoint.send(*group, send);
    auto request = message(MessageType::kStreamRequest, 5);
    request.id = connection->sent.back().id;
    deliver(request);
    const auto region =
        endpoint.regions.add({memory.data(), memory.size()}, "memory", nullptr);
    lend(region);
    const wire::FramePiece piece{0, memory.size()};
    const auto bytes = std::as_bytes(std::span(&piece, 1));
    auto fetch = message(MessageType::kGetRequest, 0);
    fetch.id = 9;
    fetch.offset = region->handle().id;
    connection->mostPerPoll = 1;
    deliver(fetch, Bytes(bytes.begin(), bytes.end()));
    connection->sent.clear();
  }
  ~ChannelTurns() override {
    channel->fail(Status(ErrorCode::kCancelled, "the test is over"));
    endpoint.settle();
  }

  Bytes memory = Bytes(4 << 20);
  GuardedPtr send;
};

TEST_F(ChannelTurns, LargeMessageAndReadOfThePeerGoOutInTurn) {
  for (int i = 0; i < 20; ++i) {
    channel->poll();
  }
  EXPECT_GE(countSent(MessageType::kData), 9U);
  EXPECT_GE(countSent(MessageType::kGetData), 9U);
}

TEST_F(ChannelTurns, SmallMessagesThatWaitForRoomLeaveTheRestToBoth) {
  connection->mostPerPoll = 2;
  for (int i = 0; i < 20; ++i) {
    connection->sincePoll = connection->mostPerPoll; // no room
    endpoint.send(*group, GuardedOperation::send(1, 6, pattern(100)));
    channel->poll();
  }
  EXPECT_EQ(countSent(MessageType::kEager), 20U);
  EXPECT_GE(countSent(MessageType::kData), 9U);
  EXPECT_GE(countSent(MessageType::kGetData), 9U);
}

} // namespace
} // namespace dlslime::testing
