// A peer that sends, or asks for, more than any honest peer: the receiver keeps
// its own limits, and the pair fails with an error that names the limit.
#include <gtest/gtest.h>

#include <new>

#include "fakes/peers/scripted_channel.h"

namespace dlslime::testing {
namespace {

class ProtocolLimits : public ScriptedChannel {
 protected:
  // Delivers messages until the channel has failed; returns the number.
  size_t untilFailure(
      const std::function<void(size_t)>& deliverNext,
      size_t most = 1000000) {
    size_t count = 0;
    while (channel->alive() && count < most) {
      deliverNext(count++);
    }
    EXPECT_FALSE(channel->alive()) << "after " << count << " messages";
    return count;
  }
  bool failureNames(const std::string& what) const {
    return channel->failure().message().find(what) != std::string::npos;
  }
};

constexpr uint64_t kUnexpected = 1024 * 1024; // of Endpoint

TEST_F(ProtocolLimits, EagerMessagesBeyondTheCreditFailThePair) {
  const auto count = untilFailure([&](size_t i) {
    deliver(
        message(MessageType::kEager, static_cast<uint32_t>(i)), pattern(1000));
  });
  EXPECT_EQ(count, kUnexpected / eagerCost(1000) + 1);
  EXPECT_TRUE(failureNames("DLSLIME_UNEXPECTED_LIMIT"))
      << channel->failure().message();
  EXPECT_TRUE(failureNames(std::to_string(kUnexpected)));
}

TEST_F(ProtocolLimits, EmptyMessagesCountToo) {
  const auto count =
      untilFailure([&](size_t) { deliver(message(MessageType::kEager, 1)); });
  EXPECT_EQ(count, kUnexpected / eagerCost(0) + 1);
}

TEST_F(ProtocolLimits, MessagesThatAreReceivedDoNotCount) {
  for (int i = 0; i < 3000; ++i) { // three times the limit
    const auto receive = GuardedOperation::receive(1, 1, 1000);
    endpoint.receive(*group, receive);
    deliver(message(MessageType::kEager, 1), pattern(1000));
    ASSERT_TRUE(receive->status().ok()) << receive->status().message();
  }
  EXPECT_TRUE(channel->alive());
}

TEST_F(ProtocolLimits, MessagesForAGroupThatIsGoneDoNotCountForEver) {
  for (int i = 0; i < 3000; ++i) {
    auto stray = message(MessageType::kEager, 1);
    stray.group = 12345;
    stray.payloadSize = 1000; // as set by a route
    deliver(stray, pattern(1000));
  }
  EXPECT_TRUE(channel->alive());
}

TEST_F(ProtocolLimits, AnnouncementsBeyondTheLimitFailThePair) {
  const auto count = untilFailure([&](size_t i) {
    auto announce = message(MessageType::kRts, 1);
    announce.length = 1 << 20;
    announce.id = i + 1;
    deliver(announce);
  });
  EXPECT_EQ(count, (size_t{64} << 20) / 256 + 1);
  EXPECT_TRUE(failureNames("DLSLIME_ANNOUNCED_LIMIT"))
      << channel->failure().message();
}

TEST_F(ProtocolLimits, AnnouncementsThatHaveEndedDoNotCount) {
  for (uint64_t i = 1; i < 300000; ++i) {
    auto announce = message(MessageType::kRts, 1);
    announce.length = 1 << 20;
    announce.id = i;
    deliver(announce);
    auto revoke = message(MessageType::kRevoke, 1);
    revoke.id = i;
    deliver(revoke);
    connection->sent.clear();
  }
  EXPECT_TRUE(channel->alive()) << channel->failure().message();
}

TEST_F(ProtocolLimits, BytesBehindAGapAreFew) {
  ++sequence; // never comes
  const auto count = untilFailure([&](size_t) {
    deliver(message(MessageType::kEager, 1), pattern(60000));
  });
  EXPECT_LE(count * 60000, (size_t{64} << 20) + 60000);
  EXPECT_TRUE(failureNames("a message is missing"))
      << channel->failure().message();
}

TEST_F(ProtocolLimits, MessagesBehindAGapAreFew) {
  ++sequence;
  const auto count =
      untilFailure([&](size_t) { deliver(message(MessageType::kNop, 1)); });
  EXPECT_LE(count, 65537U);
}

TEST_F(ProtocolLimits, AnswersThatThePeerDoesNotReadAreFew) {
  connection->full = true;
  untilFailure([&](size_t i) {
    auto retract = message(MessageType::kRetract, 1);
    retract.id = i;
    deliver(retract);
  });
  EXPECT_TRUE(failureNames("reads none")) << channel->failure().message();
}

TEST_F(ProtocolLimits, AnswersThatItReadsDoNotCount) {
  for (uint64_t i = 0; i < 300000; ++i) {
    connection->full = i % 2 == 0;
    auto retract = message(MessageType::kRetract, 1);
    retract.id = i;
    deliver(retract);
    connection->sent.clear();
    connection->full = false;
    channel->poll();
  }
  EXPECT_TRUE(channel->alive()) << channel->failure().message();
}

// A fetch takes a place among the streams, even without pieces.
TEST_F(ProtocolLimits, FetchesWithoutPiecesAreFew) {
  Bytes memory(1000);
  const auto region =
      endpoint.regions.add({memory.data(), memory.size()}, "memory", nullptr);
  lend(region);
  connection->full = true;
  const auto count = untilFailure([&](size_t i) {
    auto fetch = message(MessageType::kGetRequest, 0);
    fetch.id = i;
    fetch.offset = region->handle().id;
    deliver(fetch);
  });
  // 131,072 streams, and as many refusals as may wait.
  EXPECT_LE(count, 131072U + 262145U);
  EXPECT_TRUE(failureNames("reads none")) << channel->failure().message();
}

struct LongRegistrar final : MemoryRegistrar {
  RegistrationPtr prepare(MemoryView /*view*/) override {
    return std::make_shared<Registration>();
  }
  RegistrationPtr registerRegion(MemoryView /*view*/) override {
    return nullptr;
  }
};

// Preparing the receives takes time; meanwhile repeated joins must not queue
// up.
TEST_F(ProtocolLimits, ProcessThatJoinsAgainAndAgainWaitsOnce) {
  LongRegistrar registrar;
  connection->setRegistrar(&registrar);
  const auto other = endpoint.join(0, 2);
  other->links().resolve(1);
  endpoint.receive(*other, GuardedOperation::receive(1, 1, 100000));
  auto join = message(MessageType::kJoin, 0);
  join.group = other->id();
  join.offset = other->epoch();
  join.source = 1; // the local rank is 0, the tag
  join.id = 5;
  for (int i = 0; i < 1000; ++i) {
    deliver(join);
  }
  const auto waiting = endpoint.groupRegistry.joins().takeWaiting();
  ASSERT_EQ(waiting.size(), 1U);
  EXPECT_EQ(waiting[0].unprepared.operations.size(), 1U);
}

TEST_F(ProtocolLimits, WantOfMemoryFailsThePairAndNotTheProcess) {
  const auto receive = GuardedOperation::receive(1, 1, 1000);
  endpoint.receive(*group, receive);
  connection->onPoll = [](ConnectionEvents&) -> bool {
    throw std::bad_alloc();
  };
  EXPECT_TRUE(channel->poll());
  endpoint.settle();
  EXPECT_FALSE(channel->alive());
  EXPECT_EQ(channel->failure().code(), ErrorCode::kExhausted);
  ASSERT_EQ(receive->ends(), 1);
  EXPECT_EQ(receive->status().code(), ErrorCode::kExhausted);
}

} // namespace
} // namespace dlslime::testing
