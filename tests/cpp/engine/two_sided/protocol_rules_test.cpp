// The protocol's rules, one at a time (docs/protocol.md).
#include <gtest/gtest.h>

#include "base/threads/mutex.h"
#include "fakes/guarded_operation.h"
#include "fakes/log_capture.h"
#include "fakes/peers/endpoint.h"
#include "fakes/world.h"

namespace dlslime::testing {
namespace {

using State = Group::LinkState;
constexpr int kAny = Operation::kAnySource;

Faults framed() {
  Faults faults;
  faults.framed = true;
  return faults;
}

class ProtocolRules : public ::testing::Test {
 protected:
  GuardedPtr send(Pair& pair, size_t size, uint32_t tag = 0) {
    auto operation = GuardedOperation::send(1, tag, pattern(size));
    pair.send(0, operation);
    return operation;
  }
  GuardedPtr receive(Pair& pair, size_t size, uint32_t tag = 0, int from = 0) {
    auto operation = GuardedOperation::receive(from, tag, size);
    pair.receive(1, operation);
    return operation;
  }
  const Counters& counters(Pair& pair) {
    return pair.group(0).link(1).counters;
  }
  size_t queued(Pair& pair, int end, MessageType type) {
    size_t count = 0;
    const MutexLock lock(pair.wire->mutex);
    for (const auto& packet : pair.wire->toEnd[end]) {
      count += packet.header.type == type;
    }
    return count;
  }
};

TEST_F(ProtocolRules, SendsPostedBeforeTheJoinGoOutInOrder) {
  Pair pair;
  const auto first = send(pair, 100);
  const auto second = send(pair, 50000);
  EXPECT_FALSE(first->done());
  const auto one = receive(pair, 50000);
  const auto two = receive(pair, 50000);
  pair.settle();
  EXPECT_EQ(one->bytes(), 100U);
  EXPECT_EQ(two->bytes(), 50000U);
}

TEST_F(ProtocolRules, EagerSendEndsWithoutAReceive) {
  Pair pair;
  pair.settle();
  const auto small = send(pair, 16 * 1024);
  const auto large = send(pair, 16 * 1024 + 1);
  EXPECT_TRUE(small->done());
  EXPECT_FALSE(large->done());
  EXPECT_EQ(counters(pair).eagerMessages, 1U);
  EXPECT_EQ(counters(pair).rendezvousMessages, 1U);
}

TEST_F(ProtocolRules, FloodOfUnexpectedMessagesIsAnnouncedAtTheLimit) {
  Pair pair({}, {1024, 64 * 1024});
  pair.settle();
  std::vector<GuardedPtr> sends;
  for (int i = 0; i < 2000; ++i) {
    sends.push_back(send(pair, 1000));
  }
  pair.settle();
  const auto eager = counters(pair).eagerMessages;
  EXPECT_LE(eager * eagerCost(1000), 64U * 1024);
  EXPECT_GE(eager, 50U);
  EXPECT_EQ(counters(pair).rendezvousMessages, 2000 - eager);
  for (int i = 0; i < 2000; ++i) {
    const auto got = receive(pair, 1000);
    pair.settle(2);
    ASSERT_TRUE(got->done()) << i;
    ASSERT_TRUE(got->status().ok());
    ASSERT_TRUE(sends[static_cast<size_t>(i)]->done());
  }
}

TEST_F(ProtocolRules, LimitOfZeroAnnouncesEverything) {
  Pair pair({}, {1024, 0});
  pair.settle();
  for (const size_t size : {0, 1, 1024}) {
    const auto sent = send(pair, size);
    const auto got = receive(pair, size);
    pair.settle();
    EXPECT_TRUE(sent->done() && sent->status().ok());
    EXPECT_TRUE(got->done() && got->status().ok());
  }
  EXPECT_EQ(counters(pair).eagerMessages, 0U);
}

// Credit comes back in lumps; with a limit below a lump, eager sending must not
// stop for good.
TEST_F(ProtocolRules, SmallLimitDoesNotEndEagerSendingForGood) {
  Pair pair({}, {1024, 256 * 1024});
  pair.settle();
  for (int i = 0; i < 5000; ++i) {
    const auto got = receive(pair, 1000);
    send(pair, 1000);
    pair.settle(2);
    ASSERT_TRUE(got->done());
  }
  EXPECT_GE(counters(pair).eagerMessages, 4000U)
      << counters(pair).rendezvousMessages << " were announced";
}

TEST_F(ProtocolRules, CreditComesBackForMessagesThatWereReceived) {
  Pair pair({}, {1024, 4 << 20});
  pair.settle();
  for (int i = 0; i < 20000; ++i) {
    send(pair, 1000);
    const auto got = receive(pair, 1000);
    pair.settle(2);
    ASSERT_TRUE(got->done());
  }
  EXPECT_EQ(counters(pair).eagerMessages, 20000U);
}

class ProtocolMismatch : public ProtocolRules,
                         public ::testing::WithParamInterface<bool> {};

// An eager send has ended before: it fails late, for callers that still look.
TEST_P(ProtocolMismatch, LongMessageFailsBothEndsWithBothSizes) {
  for (const auto& [receiveFirst, length] :
       {std::pair(false, 33333U),
        {true, 33333U},
        {false, 3333U},
        {true, 3333U}}) {
    Pair pair(GetParam() ? framed() : Faults{});
    GuardedPtr got;
    if (receiveFirst) {
      got = receive(pair, 777);
      pair.settle();
    }
    const auto sent = send(pair, length);
    pair.settle();
    if (!receiveFirst) {
      got = receive(pair, 777);
      pair.settle();
    }
    for (const auto& operation : {sent, got}) {
      ASSERT_TRUE(operation->done());
      EXPECT_EQ(operation->status().code(), ErrorCode::kTruncated);
      const auto& text = operation->status().message();
      EXPECT_NE(text.find(std::to_string(length)), std::string::npos) << text;
      EXPECT_NE(text.find("777"), std::string::npos) << text;
      EXPECT_EQ(operation->ends(), 1);
      EXPECT_EQ(operation->releases(), 1);
    }
    EXPECT_EQ(got->result(), Bytes(777));
    const auto next = receive(pair, 10);
    send(pair, 10);
    pair.settle();
    EXPECT_TRUE(next->done() && next->status().ok());
  }
}

TEST_P(ProtocolMismatch, LateRefusalFindsItsOwnSendOnly) {
  Pair pair(GetParam() ? framed() : Faults{});
  pair.settle();
  std::vector<GuardedPtr> sends;
  for (int i = 0; i < 1000; ++i) {
    sends.push_back(send(pair, i % 10 == 7 ? 100 : 10));
  }
  for (int i = 0; i < 1000; ++i) {
    receive(pair, 10);
    pair.settle(2);
  }
  // Failures of sends no longer remembered are only logged.
  for (size_t i = 0; i < sends.size(); ++i) {
    const bool tooLong = i % 10 == 7;
    ASSERT_EQ(sends[i]->status().ok(), !tooLong || i < 1000 - 256) << i;
  }
}

TEST_P(ProtocolMismatch, ShorterMessageFillsTheFront) {
  Pair pair(GetParam() ? framed() : Faults{});
  for (const size_t size : {0, 10, 20000, 99999}) {
    const auto got = receive(pair, 100000);
    send(pair, size);
    pair.settle();
    ASSERT_TRUE(got->done());
    Bytes expected = pattern(size);
    expected.resize(100000);
    EXPECT_EQ(got->bytes(), size);
    EXPECT_EQ(got->result(), expected);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Pull,
    ProtocolMismatch,
    ::testing::Values(false, true),
    [](const auto& instance) {
      return std::string(instance.param ? "Framed" : "Pulled");
    });

TEST_F(ProtocolRules, LongEagerMessageIsReportedToItsSenderInAnyOrder) {
  for (const bool receiveFirst : {true, false}) {
    const LogCapture log;
    Pair pair;
    pair.settle();
    GuardedPtr got = receiveFirst ? receive(pair, 77) : nullptr;
    const auto sent = send(pair, 5555);
    pair.settle();
    if (!receiveFirst) {
      got = receive(pair, 77);
      pair.settle();
    }
    EXPECT_TRUE(sent->done());
    ASSERT_TRUE(got->done());
    EXPECT_EQ(got->status().code(), ErrorCode::kTruncated);
    EXPECT_EQ(got->result(), Bytes(77));
    EXPECT_EQ(log.count("5555"), 1U)
        << (receiveFirst ? "receive first" : "message first") << log.all();
  }
}

TEST_F(ProtocolRules, CancelledSendThatWaitsForThePeerNeverLeaves) {
  Pair pair;
  const auto sent = send(pair, 10);
  pair.cancel(0, sent);
  EXPECT_EQ(sent->status().code(), ErrorCode::kTimeout);
  pair.settle();
  EXPECT_EQ(pair.group(1).matcher().arrivals(), 0U);
}

TEST_F(ProtocolRules, CancelledSendThatWaitsForRoomNeverLeaves) {
  Faults faults;
  faults.refusePercent = 100;
  Endpoint alone;
  const auto wire = std::make_shared<Wire>();
  const auto channel =
      alone.connect(std::make_unique<FaultyConnection>(wire, 0, 1, faults));
  auto group = alone.join(0, 2);
  group->links().resolve(1);
  group->linkReady(1, channel, 5);
  const auto sent = GuardedOperation::send(1, 0, pattern(10));
  alone.send(*group, sent);
  EXPECT_EQ(sent->stage, Operation::Stage::kQueued);
  alone.cancel(*group, sent, Status(ErrorCode::kTimeout, "taken back"));
  EXPECT_EQ(sent->releases(), 1);
  EXPECT_TRUE(channel->idle());
}

TEST_F(ProtocolRules, CancelledAnnouncementIsForgottenByThePeer) {
  Pair pair;
  pair.settle();
  const auto sent = send(pair, 50000);
  pair.settle();
  EXPECT_EQ(pair.group(1).matcher().arrivals(), 1U);
  pair.cancel(0, sent);
  EXPECT_EQ(sent->releases(), 0) << "the peer may be reading it";
  pair.settle();
  EXPECT_EQ(sent->status().code(), ErrorCode::kTimeout);
  EXPECT_EQ(pair.group(1).matcher().arrivals(), 0U);
  EXPECT_TRUE(pair.channel(0).idle());
}

TEST_F(ProtocolRules, CancelThatComesTooLateLetsTheMessageArrive) {
  Faults faults;
  faults.maxDelayPolls = 4;
  for (faults.seed = 0; faults.seed < 40; ++faults.seed) {
    Pair pair(faults);
    pair.settle();
    const auto sent = send(pair, 50000);
    const auto got = receive(pair, 50000);
    for (uint64_t i = 0; i < faults.seed % 10; ++i) {
      pair.end(1).poll();
    }
    pair.cancel(0, sent);
    pair.settle();
    ASSERT_TRUE(sent->done());
    if (sent->status().ok()) {
      ASSERT_TRUE(got->done() && got->status().ok());
      EXPECT_EQ(got->result(), pattern(50000));
    } else {
      EXPECT_EQ(sent->status().code(), ErrorCode::kTimeout);
      EXPECT_FALSE(got->done());
      pair.cancel(1, got);
    }
  }
}

TEST_F(ProtocolRules, ReceiveCancelledWhilePullingFailsTheSendOnly) {
  Faults faults;
  faults.maxDelayPolls = 1000; // keeps the pull from ending
  faults.seed = 3;
  Pair pair(faults);
  pair.settle(2000);
  const auto got = receive(pair, 50000);
  const auto sent = send(pair, 50000);
  for (int i = 0; i < 3000 && got->stage != Operation::Stage::kPulling; ++i) {
    pair.end(1).channels[0]->poll();
  }
  ASSERT_EQ(got->stage, Operation::Stage::kPulling);
  pair.cancel(1, got);
  pair.cancel(1, got);
  pair.settle(2000);
  ASSERT_TRUE(got->done());
  EXPECT_EQ(got->status().message(), "taken back");
  ASSERT_TRUE(sent->done());
  EXPECT_EQ(sent->status().code(), ErrorCode::kPeerFailed);
  EXPECT_NE(sent->status().message().find("gave up"), std::string::npos);
}

TEST_F(ProtocolRules, ClosedGroupAnswersWhatComesTooLate) {
  Pair pair;
  pair.settle();
  pair.group(1).close(Status(ErrorCode::kCancelled, "closed"));
  const auto sent = send(pair, 50000);
  pair.settle();
  ASSERT_TRUE(sent->done());
  EXPECT_EQ(sent->status().code(), ErrorCode::kPeerFailed);
  const auto refused = receive(pair, 10);
  EXPECT_EQ(refused->status().code(), ErrorCode::kCancelled);
}

TEST_F(ProtocolRules, LeavingFailsThePeersOperationsAndKeepsWhatItSent) {
  Pair pair;
  pair.settle();
  send(pair, 100, 7);
  const auto waiting = receive(pair, 100, 8);
  pair.group(0).close(Status(ErrorCode::kCancelled, "over"));
  pair.end(0).groupRegistry.remove(pair.group(0));
  pair.settle();
  ASSERT_TRUE(waiting->done());
  EXPECT_EQ(waiting->status().code(), ErrorCode::kPeerFailed);
  const auto kept = receive(pair, 100, 7);
  ASSERT_TRUE(kept->done());
  EXPECT_EQ(kept->result(), pattern(100));
  const auto none = receive(pair, 100, 7);
  EXPECT_EQ(none->status().code(), ErrorCode::kPeerFailed);
  EXPECT_EQ(pair.end(0).groupRegistry.size(), 0U);
}

TEST_F(ProtocolRules, AnySourceFailsOnlyWhenAllOthersAreGone) {
  Pair pair;
  pair.settle();
  const auto any = receive(pair, 10, 0, kAny);
  EXPECT_FALSE(any->done());
  pair.end(0).groupRegistry.remove(pair.group(0));
  pair.settle();
  ASSERT_TRUE(any->done());
  EXPECT_EQ(any->status().code(), ErrorCode::kPeerFailed);
}

} // namespace
} // namespace dlslime::testing
