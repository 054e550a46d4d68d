// Messages of a peer that breaks the rules, one rule at a time.
#include <gtest/gtest.h>

#include "fakes/guarded_operation.h"
#include "fakes/log_capture.h"
#include "fakes/peers/endpoint.h"
#include "fakes/peers/scripted_connection.h"
#include "fakes/world.h"

namespace dlslime::testing {
namespace {

constexpr Outbound::Limits kLimits{1000, 50000};

// Rank 0 of a group of two, whose peer breaks the rules.
class ProtocolMalformed : public ::testing::Test {
 protected:
  ProtocolMalformed() {
    auto made = std::make_unique<ScriptedConnection>();
    wire = made.get();
    channel = endpoint.connect(std::move(made));
    group = endpoint.join(0, 2);
    group->links().resolve(1);
    group->linkReady(1, channel, 5);
  }
  void deliver(MessageHeader header, const Bytes& payload = {}) {
    header.sequence = ++sequence;
    header.payloadSize = static_cast<uint32_t>(payload.size());
    channel->events().onMessage(header, payload);
    endpoint.settle();
  }
  // Begins the streaming of a message into a receive; returns the local number
  // of the stream.
  uint64_t startStream(const GuardedPtr& receive, size_t length) {
    endpoint.receive(*group, receive);
    MessageHeader announce;
    announce.type = MessageType::kRts;
    announce.group = group->id();
    announce.source = 1;
    announce.length = length;
    announce.id = 31;
    deliver(announce);
    EXPECT_EQ(wire->sent.back().type, MessageType::kStreamRequest);
    return wire->sent.back().offset;
  }
  static MessageHeader data(uint64_t id, uint64_t offset) {
    MessageHeader header;
    header.type = MessageType::kData;
    header.id = id;
    header.offset = offset;
    return header;
  }

  const LogCapture quiet;
  Endpoint endpoint{kLimits};
  ScriptedConnection* wire;
  std::shared_ptr<PeerChannel> channel;
  std::shared_ptr<Group> group;
  uint64_t sequence = 0;
};

TEST_F(ProtocolMalformed, PieceAtAWrongOffsetFailsTheReceive) {
  for (const uint64_t offset : {1ULL, 1000ULL, 5000ULL, ~0ULL}) {
    const auto receive = GuardedOperation::receive(1, 0, 5000);
    const auto id = startStream(receive, 5000);
    deliver(data(id, offset), pattern(100));
    ASSERT_EQ(receive->ends(), 1);
    EXPECT_EQ(receive->status().code(), ErrorCode::kTransportFailed);
    EXPECT_EQ(receive->result(), Bytes(5000));
    EXPECT_EQ(wire->sent.back().type, MessageType::kFinish);
    EXPECT_EQ(wire->sent.back().status, FinishStatus::kFailed);
  }
}

TEST_F(ProtocolMalformed, PieceBeyondTheEndFailsTheReceive) {
  const auto receive = GuardedOperation::receive(1, 0, 9000);
  const auto id = startStream(receive, 5000);
  deliver(data(id, 0), pattern(4000));
  deliver(data(id, 4000), pattern(1001));
  EXPECT_EQ(receive->status().code(), ErrorCode::kTransportFailed);
  Bytes expected = pattern(4000);
  expected.resize(9000);
  EXPECT_EQ(receive->result(), expected);
}

TEST_F(ProtocolMalformed, PiecesForWhatIsPulledOrUnknownAreDropped) {
  wire->canPull = true;
  const auto receive = GuardedOperation::receive(1, 0, 5000);
  endpoint.receive(*group, receive);
  MessageHeader announce;
  announce.type = MessageType::kRts;
  announce.group = group->id();
  announce.source = 1;
  announce.length = 5000;
  announce.id = 31;
  deliver(announce);
  ASSERT_EQ(wire->pulls.size(), 1U);
  deliver(data(4711, 0), pattern(10));
  EXPECT_FALSE(receive->done());
  // A pull may be writing into the memory, so the receive must not end before
  // the route has reported the end of the pull.
  deliver(data(wire->pulls[0].id, 0), pattern(10));
  EXPECT_EQ(receive->releases(), 0)
      << "the memory was released under the feet of a running pull";
}

TEST_F(ProtocolMalformed, FinishForUnknownMessagesIsDropped) {
  const auto send = GuardedOperation::send(1, 0, pattern(5000));
  endpoint.send(*group, send);
  const auto id = wire->sent.back().id;
  MessageHeader finish;
  finish.type = MessageType::kFinish;
  for (const uint64_t wrong :
       {uint64_t{0}, id + 1, id ^ (uint64_t{1} << 33), ~uint64_t{0}}) {
    finish.id = wrong;
    deliver(finish);
    EXPECT_FALSE(send->done());
  }
  finish.id = id;
  finish.status = static_cast<FinishStatus>(77);
  deliver(finish);
  EXPECT_EQ(send->status().code(), ErrorCode::kTransportFailed);
  deliver(finish);
  EXPECT_EQ(send->ends(), 1);
}

TEST_F(ProtocolMalformed, RevokedWithoutBeingAskedIsNoSuccess) {
  const auto send = GuardedOperation::send(1, 0, pattern(5000));
  endpoint.send(*group, send);
  MessageHeader finish;
  finish.type = MessageType::kFinish;
  finish.status = FinishStatus::kRevoked;
  finish.id = wire->sent.back().id;
  deliver(finish);
  ASSERT_TRUE(send->done());
  EXPECT_FALSE(send->status().ok())
      << "the peer did not receive it, and this end did not revoke it";
}

TEST_F(ProtocolMalformed, TooMuchCreditIsNotKept) {
  MessageHeader credit;
  credit.type = MessageType::kCredit;
  credit.length = ~0ULL;
  deliver(credit);
  for (int i = 0; i < 200; ++i) {
    endpoint.send(*group, GuardedOperation::send(1, 0, pattern(1000)));
  }
  EXPECT_LE(
      group->link(1).counters.eagerMessages * eagerCost(1000),
      kLimits.unexpectedBytes);
}

TEST_F(ProtocolMalformed, ThousandRequestsForOneMessageKeepOneStream) {
  const auto send = GuardedOperation::send(1, 0, pattern(5000));
  endpoint.send(*group, send);
  MessageHeader request;
  request.type = MessageType::kStreamRequest;
  request.id = wire->sent.back().id;
  wire->full = true;
  for (int i = 0; i < 1000; ++i) {
    request.offset = static_cast<uint64_t>(i) + 1;
    deliver(request);
  }
  wire->full = false;
  wire->sent.clear();
  while (channel->poll()) {
  }
  EXPECT_LE(wire->sent.size(), 10U) << "each request streams all of it again";
}

} // namespace
} // namespace dlslime::testing
