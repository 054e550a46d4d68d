// A peer that says anything at all: nothing may crash, touch other memory, or
// end what is not its own.
#include <gtest/gtest.h>

#include <random>

#include "fakes/endpoint.h"
#include "fakes/guarded_operation.h"
#include "fakes/log_capture.h"
#include "fakes/scripted_connection.h"
#include "world.h"

namespace dlslime::testing {
namespace {

constexpr Outbound::Limits kLimits{1000, 50000};

// Rank 0 of a group of four. The peer behind `bad` is rank 1 and talks
// nonsense; rank 2 behaves; a second group is without rank 1.
class ProtocolFuzz : public ::testing::TestWithParam<unsigned> {
 protected:
  ProtocolFuzz() {
    good = connect(goodWire);
    group = endpoint.join(0, 4, 1, "shared");
    other = endpoint.join(0, 4, 1, "other");
    connectBad();
    group->touch(2);
    other->touch(2);
    group->linkReady(2, good, 22);
    other->linkReady(2, good, 23);
    protectedReceive = GuardedOperation::receive(2, 0, 500);
    protectedSend = GuardedOperation::send(2, 0, pattern(5000));
    otherReceive = GuardedOperation::receive(2, 1, 500);
    endpoint.receive(*group, protectedReceive);
    endpoint.send(*group, protectedSend);
    endpoint.receive(*other, otherReceive);
  }
  std::shared_ptr<PeerChannel> connect(ScriptedConnection*& wire) {
    auto made = std::make_unique<ScriptedConnection>();
    wire = made.get();
    return endpoint.connect(std::move(made));
  }
  // A new channel in place of one that the nonsense has ended: in a group of
  // its own, since a lost rank stays lost.
  void connectBad() {
    if (badGroup) {
      badGroup->close(Status(ErrorCode::kCancelled, "over"));
      endpoint.settle();
    }
    bad = connect(badWire);
    badWire->pulling = random() % 2 == 0;
    badGroup = endpoint.join(0, 4, 1, "bad");
    badGroup->touch(1);
    badGroup->linkReady(1, bad, 5);
    group->link(1).channel = nullptr;
    sequence = 0;
  }
  template <typename T>
  T any(std::initializer_list<T> values) {
    return values.begin()[random() % values.size()];
  }
  uint64_t someId() {
    std::vector<uint64_t> known{
        0, 1, ~0ULL, random(), (1ULL << 32), (1ULL << 32) | 1, (2ULL << 32)};
    for (const auto& header : badWire->sent) {
      known.push_back(header.id);
      known.push_back(header.offset); // kRequest's pull
    }
    for (const auto& pull : badWire->pulls) {
      known.push_back(pull.id);
    }
    for (const auto& header : goodWire->sent) {
      known.push_back(header.id); // another peer's
    }
    return known[random() % known.size()];
  }
  MessageHeader someHeader() {
    MessageHeader header;
    header.type = static_cast<MessageType>(
        random() % 400 == 0
            ? random() % 256
            : 1 + random() % static_cast<int>(kLastMessageType));
    header.status = static_cast<FinishStatus>(random() % 8);
    header.group = any<uint32_t>(
        {badGroup->id(),
         badGroup->id(),
         badGroup->id(),
         group->id(),
         other->id(),
         0,
         999,
         ~0U});
    header.source = any<uint32_t>({1, 1, 1, 1, 0, 2, 3, 4, 1000, ~0U});
    header.tag = any<uint32_t>({0, 1, 2, 3, 0x7fffffff, ~0U});
    header.length =
        any<uint64_t>({0, 1, 500, 1000, 5000, 100000, 1ULL << 40, ~0ULL});
    header.id = someId();
    header.offset =
        any<uint64_t>({0, 1, 500, 1000, 1ULL << 63, ~0ULL, someId()});
    header.address = random();
    header.reserved = static_cast<uint16_t>(random());
    header.key = static_cast<uint32_t>(random());
    return header;
  }
  void inject() {
    MessageHeader header = someHeader();
    const size_t size = any<size_t>({0, 0, 1, 500, 501, 1000, 5000, 64000});
    // Of its own allocation, so that a read beyond it is seen.
    const Bytes payload(size, std::byte{0x77});
    header.payloadSize = static_cast<uint32_t>(size);
    header.sequence = random() % 50 == 0 ? random() % 100 : ++sequence;
    bad->onMessage(header, payload);
  }
  void post() {
    const auto tag = static_cast<uint32_t>(random() % 4);
    const size_t size = any<size_t>({0, 1, 500, 1000, 1001, 5000});
    if (random() % 2 == 0) {
      posted.push_back(GuardedOperation::send(1, tag, pattern(size)));
      badGroup->send(posted.back());
    } else {
      const int from = random() % 3 == 0 ? Operation::kAnySource : 1;
      posted.push_back(GuardedOperation::receive(from, tag, size));
      badGroup->receive(posted.back());
    }
  }
  void endSomePull() {
    if (badWire->pulls.empty()) {
      return;
    }
    const auto at = random() % badWire->pulls.size();
    const auto pull = badWire->pulls[at];
    badWire->pulls.erase(badWire->pulls.begin() + static_cast<long>(at));
    if (pull.destination.size != 0) { // it must still be there
      std::memset(pull.destination.data, 0x55, pull.destination.size);
    }
    bad->onPulled(
        pull.id,
        pull.abandoned || random() % 4 == 0
            ? Status(ErrorCode::kTransportFailed, "broken")
            : Status());
  }
  void step() {
    switch (random() % 8) {
      case 0:
        post();
        break;
      case 1:
        endSomePull();
        break;
      case 2:
        badWire->full = random() % 3 == 0;
        bad->poll();
        break;
      case 3:
        if (!posted.empty()) {
          endpoint.cancel(
              *badGroup,
              posted[random() % posted.size()],
              Status(ErrorCode::kTimeout, "taken back"));
        }
        break;
      default:
        inject();
    }
    endpoint.settle();
    if (badWire->sent.size() > 200) {
      badWire->sent.erase(badWire->sent.begin(), badWire->sent.begin() + 150);
    }
  }
  void replaceIfFailed() {
    if (bad->state() == PeerChannel::State::kOpen && posted.size() < 300) {
      return;
    }
    bad->fail(Status(ErrorCode::kPeerFailed, "over"));
    while (!badWire->pulls.empty()) {
      endSomePull();
    }
    endpoint.settle();
    EXPECT_TRUE(bad->idle());
    connectBad();
    for (const auto& operation : posted) {
      ASSERT_EQ(operation->ends(), 1) << operation->describe();
      ASSERT_EQ(operation->releases(), 1) << operation->describe();
    }
    posted.clear();
  }

  const LogCapture quiet;
  std::mt19937_64 random{GetParam()};
  Endpoint endpoint{kLimits};
  ScriptedConnection* goodWire = nullptr;
  ScriptedConnection* badWire = nullptr;
  std::shared_ptr<PeerChannel> good, bad;
  std::shared_ptr<Group> group, other, badGroup;
  GuardedPtr protectedReceive, protectedSend, otherReceive;
  std::vector<GuardedPtr> posted;
  uint64_t sequence = 0;
};

TEST_P(ProtocolFuzz, NonsenseHarmsNobodyElse) {
  for (int i = 0; i < 60000 && !HasFatalFailure(); ++i) {
    step();
    replaceIfFailed();
  }
  EXPECT_EQ(good->state(), PeerChannel::State::kOpen);
  for (const auto& operation :
       {protectedReceive, protectedSend, otherReceive}) {
    EXPECT_FALSE(operation->done())
        << operation->describe() << ": " << operation->status().message();
  }
  EXPECT_EQ(group->link(2).state, Group::LinkState::kReady);
  EXPECT_EQ(group->link(2).channel, good);
  EXPECT_EQ(other->link(2).channel, good);
}

INSTANTIATE_TEST_SUITE_P(Seeds, ProtocolFuzz, ::testing::Range(1U, 7U));

class ProtocolMalformed : public ::testing::Test {
 protected:
  ProtocolMalformed() {
    auto made = std::make_unique<ScriptedConnection>();
    wire = made.get();
    channel = endpoint.connect(std::move(made));
    group = endpoint.join(0, 2);
    group->touch(1);
    group->linkReady(1, channel, 5);
  }
  void deliver(MessageHeader header, const Bytes& payload = {}) {
    header.sequence = ++sequence;
    header.payloadSize = static_cast<uint32_t>(payload.size());
    channel->onMessage(header, payload);
    endpoint.settle();
  }
  // A receive of `size` bytes whose message is being streamed to us; returns
  // our number for it.
  uint64_t startStream(const GuardedPtr& receive, size_t length) {
    endpoint.receive(*group, receive);
    MessageHeader announce;
    announce.type = MessageType::kAnnounce;
    announce.group = group->id();
    announce.source = 1;
    announce.length = length;
    announce.id = 31;
    deliver(announce);
    EXPECT_EQ(wire->sent.back().type, MessageType::kRequest);
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
  wire->pulling = true;
  const auto receive = GuardedOperation::receive(1, 0, 5000);
  endpoint.receive(*group, receive);
  MessageHeader announce;
  announce.type = MessageType::kAnnounce;
  announce.group = group->id();
  announce.source = 1;
  announce.length = 5000;
  announce.id = 31;
  deliver(announce);
  ASSERT_EQ(wire->pulls.size(), 1U);
  deliver(data(4711, 0), pattern(10));
  EXPECT_FALSE(receive->done());
  // A pull may be writing into the memory: the receive must not end before
  // the route says that it has stopped.
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
      << "nobody received it and nobody took it back";
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
  request.type = MessageType::kRequest;
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
