#include "engine/channel/peer_channel.h"

#include <gtest/gtest.h>

#include <thread>

#include "engine/peer/channel_table.h"
#include "fakes/log_capture.h"
#include "fakes/peers/scripted_channel.h"
#include "fakes/world.h"

namespace dlslime::testing {
namespace {

const Status kBroken(ErrorCode::kPeerFailed, "the peer is gone");

using PeerChannelTest = ScriptedChannel;

// The connection can offer memory and push.
class PushingChannelTest : public ScriptedChannel {
 protected:
  PushingChannelTest() : ScriptedChannel(true) {}
  // Returns a send that is being pushed.
  GuardedPtr pushed() {
    auto ready = message(MessageType::kRtr, 5);
    ready.length = 1000;
    deliver(ready);
    auto send = GuardedOperation::send(1, 5, pattern(1000));
    endpoint.send(*group, send);
    EXPECT_EQ(connection->pushes.size(), 1U);
    return send;
  }
};

TEST_F(PeerChannelTest, FailureEndsQueuedAndAnnouncedSends) {
  connection->full = true;
  const auto queued = GuardedOperation::send(1, 0, pattern(100));
  endpoint.send(*group, queued);
  connection->full = false;
  const auto announced = GuardedOperation::send(1, 0, pattern(100000));
  endpoint.send(*group, announced);
  channel->fail(kBroken);
  channel->fail(kBroken);
  endpoint.settle();
  for (const auto& send : {queued, announced}) {
    EXPECT_EQ(send->ends(), 1);
    EXPECT_EQ(send->releases(), 1);
    EXPECT_EQ(send->status().code(), ErrorCode::kPeerFailed);
  }
  EXPECT_TRUE(connection->exposed.empty());
  EXPECT_TRUE(channel->idle());
}

TEST_F(PeerChannelTest, FailureKeepsAReceiveWhoseMemoryIsStillWritten) {
  const auto receive = pulled(1);
  channel->fail(kBroken);
  endpoint.settle();
  EXPECT_EQ(receive->releases(), 0);
  EXPECT_FALSE(channel->idle());
  channel->events().onPulled(
      connection->pulls[0].id, Status(ErrorCode::kCancelled, "given up"));
  endpoint.settle();
  EXPECT_EQ(receive->releases(), 1);
  EXPECT_EQ(receive->ends(), 1);
  EXPECT_EQ(receive->status().code(), ErrorCode::kPeerFailed);
  EXPECT_TRUE(channel->idle());
}

struct NoRegistrar final : MemoryRegistrar {
  RegistrationPtr prepare(MemoryView /*view*/) override {
    return nullptr;
  }
  RegistrationPtr registerRegion(MemoryView /*view*/) override {
    return nullptr;
  }
};

// An ended receive is never prepared; a peer waiting for the preparation would
// wait for ever.
TEST_F(PeerChannelTest, ReceiveThatEndsAmongItsBytesLacksNoPreparing) {
  const auto receive = pulled(Operation::kAnySource);
  NoRegistrar registrar;
  EXPECT_EQ(findUnprepared(*group, 1, &registrar).operations.size(), 1U);
  endpoint.completions.finishEarly(receive, kBroken); // ended for the caller
  EXPECT_TRUE(findUnprepared(*group, 1, &registrar).operations.empty());
  channel->events().onPulled(connection->pulls[0].id, kBroken);
  endpoint.settle();
  EXPECT_EQ(receive->ends(), 1);
}

// Else receives posted during each preparation could keep the peer waiting.
TEST(GroupTest, ReceiveFromAnySourceIsPreparedForThePeerThatWaits) {
  Endpoint endpoint;
  const auto group = endpoint.join(0, 3);
  NoRegistrar first, second;
  findUnprepared(*group, 1, &first);
  EXPECT_EQ(group->links().registrar(Operation::kAnySource), &first);
  findUnprepared(*group, 2, &second);
  EXPECT_EQ(group->links().registrar(Operation::kAnySource), &second);
  group->links().use(group->link(2), nullptr);
  EXPECT_EQ(group->links().registrar(Operation::kAnySource), &first);
}

TEST_F(PushingChannelTest, OffersThatComeTooLateBecomeFewUntilTheyAreOfUse) {
  channel->parts()->in.advertised().use(AdvertiseThrottle(true));
  const auto isOffered = [&](bool pushed) {
    const auto receive = GuardedOperation::receive(1, 5, 1000);
    endpoint.receive(*group, receive);
    const bool offered = !connection->offered.empty();
    if (offered && pushed) {
      const auto id = connection->offered[0].id;
      channel->events().onLanded(id, static_cast<uint16_t>(++sequence), 1000);
      endpoint.settle();
    } else {
      auto eager = message(MessageType::kEager, 5);
      eager.length = 1000;
      eager.payloadSize = 1000;
      deliver(eager, pattern(1000));
    }
    EXPECT_TRUE(receive->done() && receive->status().ok());
    EXPECT_TRUE(connection->offered.empty());
    return offered;
  };
  int missed = 0, used = 0;
  for (int i = 0; i < 64; ++i) {
    missed += isOffered(false) ? 1 : 0;
  }
  EXPECT_TRUE(missed >= 5 && missed <= 8) << missed;
  for (int i = 0; i < 64; ++i) {
    used += isOffered(true) ? 1 : 0;
  }
  EXPECT_GE(used, 32);
  EXPECT_TRUE(isOffered(true) && isOffered(true));
}

// The bytes given to the receiver's NIC must not change, though the send has
// failed.
TEST_F(PushingChannelTest, FailureKeepsAPushedSendWhoseMemoryIsStillRead) {
  const auto send = pushed();
  channel->fail(kBroken);
  endpoint.settle();
  EXPECT_EQ(send->ends(), 1);
  EXPECT_EQ(send->status().code(), ErrorCode::kPeerFailed);
  EXPECT_EQ(send->releases(), 0);
  EXPECT_FALSE(channel->idle());
  channel->events().onPushed(connection->pushes[0].id, kBroken);
  endpoint.settle();
  EXPECT_EQ(send->ends(), 1);
  EXPECT_EQ(send->releases(), 1);
  EXPECT_TRUE(channel->idle());
}

// The memory is safe after the connection's destruction.
TEST_F(PushingChannelTest, DeviceThatTellsNothingIsGivenUp) {
  connection->when = ReplaceAbility::When::kBroken;
  const auto send = pushed();
  const auto start = Clock::now();
  channel->fail(kBroken);
  EXPECT_TRUE(eventually([&] { return channel->idle(); }));
  EXPECT_GE(Clock::now() - start, milliseconds(1000)) << "it is given time";
  endpoint.settle();
  EXPECT_EQ(send->releases(), 0);
  channel->takeConnection().reset();
  channel->quieted();
  endpoint.settle();
  EXPECT_EQ(send->ends(), 1);
  EXPECT_EQ(send->releases(), 1);
}

// A connection being replaced tells the end of a push only once.
TEST_F(PushingChannelTest, PushThatWasLostBeforeTheFailureIsLetGoWithIt) {
  const auto send = pushed();
  connection->when = ReplaceAbility::When::kBroken;
  ASSERT_TRUE(channel->sever(kBroken));
  channel->events().onPushed(connection->pushes.at(0).id, kBroken);
  endpoint.settle();
  EXPECT_EQ(send->ends(), 0);
  channel->fail(kBroken);
  endpoint.settle();
  EXPECT_EQ(send->ends(), 1);
  EXPECT_EQ(send->releases(), 1);
  EXPECT_TRUE(channel->idle());
}

// When a queued message leaves, credit for earlier messages may have come back.
TEST_F(PeerChannelTest, QueuedMessageIsAnnouncedOnlyIfItsTurnFindsNoCredit) {
  const size_t size = 16 * 1024;
  while (countSent(MessageType::kRts) == 0) {
    endpoint.send(*group, GuardedOperation::send(1, 0, pattern(size)));
  }
  const uint64_t eager = countSent(MessageType::kEager);
  connection->full = true;
  // The first send has its turn now, without credit; the second has its turn
  // later.
  endpoint.send(*group, GuardedOperation::send(1, 0, pattern(size)));
  const auto queued = GuardedOperation::send(1, 0, pattern(size));
  endpoint.send(*group, queued);
  auto credit = message(MessageType::kCredit, 0);
  credit.length = eager * eagerCost(size);
  deliver(credit);
  EXPECT_FALSE(queued->done());
  connection->full = false;
  endpoint.poll();
  EXPECT_TRUE(queued->done());
  EXPECT_EQ(countSent(MessageType::kEager), eager + 1);
  EXPECT_EQ(countSent(MessageType::kRts), 2U);
}

TEST_F(PeerChannelTest, PostsAfterFailureEndAtOnce) {
  channel->fail(kBroken);
  const auto send = GuardedOperation::send(1, 0, pattern(100));
  const auto receive = GuardedOperation::receive(1, 0, 100);
  endpoint.send(*group, send);
  endpoint.receive(*group, receive);
  EXPECT_EQ(send->status().code(), ErrorCode::kPeerFailed);
  EXPECT_EQ(receive->status().code(), ErrorCode::kPeerFailed);
}

TEST_F(PeerChannelTest, UnknownTypeFailsTheChannelAndNamesIt) {
  const auto receive = GuardedOperation::receive(1, 0, 100);
  endpoint.receive(*group, receive);
  deliver(message(static_cast<MessageType>(200), 0));
  EXPECT_EQ(channel->state(), PeerChannel::State::kFailed);
  EXPECT_EQ(receive->status().code(), ErrorCode::kTransportFailed);
  EXPECT_NE(receive->status().message().find("200"), std::string::npos);
}

// A message that came early may break the channel; messages behind must not
// revive the channel.
TEST_F(PeerChannelTest, MessagesKeptBehindABadOneAreDropped) {
  auto other = endpoint.join(0, 2, 1, "other");
  const auto waiting = GuardedOperation::send(1, 0, pattern(100));
  endpoint.send(*other, waiting);
  auto bad = message(static_cast<MessageType>(99), 0);
  auto join = message(MessageType::kJoin, 0);
  join.group = other->id();
  join.id = 5;
  join.offset = other->epoch();
  bad.sequence = sequence + 2;
  join.sequence = sequence + 3;
  channel->events().onMessage(join, {});
  channel->events().onMessage(bad, {});
  deliver(message(MessageType::kCredit, 0));
  ASSERT_EQ(channel->state(), PeerChannel::State::kFailed);
  EXPECT_NE(other->link(1).state, Group::LinkState::kReady);
  other->close(Status(ErrorCode::kCancelled, "over"));
  endpoint.settle();
  EXPECT_EQ(waiting->ends(), 1) << "a send is lost on a failed channel";
}

// Else messages of the process to its own rank would go to the peer.
TEST_F(PeerChannelTest, NoPeerJoinsAsThisRank) {
  auto join = message(MessageType::kJoin, 0);
  join.source = 0;
  join.id = 5;
  join.offset = group->epoch();
  deliver(join);
  EXPECT_EQ(countSent(MessageType::kStale), 1U);
  EXPECT_NE(group->link(0).state, Group::LinkState::kReady);
}

// All further pairs wait while messages are handled.
TEST_F(PeerChannelTest, ManyKeptBehindAGapAreHandledAFewAtATime) {
  constexpr int kMany = 10000;
  int answered = 0;
  auto join = message(MessageType::kJoin, 0); // answered each time
  for (int i = 0; i < kMany; ++i) {
    join.sequence = sequence + 2 + static_cast<uint64_t>(i);
    channel->events().onMessage(join, {});
  }
  deliver(message(MessageType::kCredit, 0));
  int looks = 0;
  do {
    const auto now = static_cast<int>(countSent(MessageType::kStale));
    EXPECT_LE(now - answered, kMessagesPerPoll);
    answered = now;
    ++looks;
  } while (channel->poll());
  EXPECT_EQ(answered, kMany);
  EXPECT_GE(looks, kMany / kMessagesPerPoll);
}

TEST_F(PeerChannelTest, GapOfSixtyFiveThousandMessagesFailsTheChannel) {
  auto header = message(MessageType::kCredit, 0);
  for (uint64_t i = 0; i <= 65536; ++i) {
    header.sequence = sequence + 2 + i;
    channel->events().onMessage(header, {});
  }
  EXPECT_EQ(channel->state(), PeerChannel::State::kFailed);
}

TEST_F(PeerChannelTest, MessagesBeforeTheEndOfThePeerStillCount) {
  const auto receive = GuardedOperation::receive(1, 3, 4);
  endpoint.receive(*group, receive);
  const Bytes payload = pattern(4);
  int left = 1;
  connection->onPoll = [&](ConnectionEvents& events) {
    if (left-- <= 0) {
      return false;
    }
    auto header = message(MessageType::kEager, 3);
    header.sequence = ++sequence;
    events.onMessage(header, payload);
    return true;
  };
  channel->peerClosed(kBroken);
  endpoint.settle();
  EXPECT_TRUE(receive->status().ok()) << receive->status().message();
  EXPECT_EQ(receive->result(), payload);
  EXPECT_EQ(channel->state(), PeerChannel::State::kFailed);
}

// Else polling would hold the engine's lock for as long as the peer likes.
TEST_F(PeerChannelTest, PeerWhoseEndHasComeAndThatSendsOnIsGivenUp) {
  connection->onPoll = [](ConnectionEvents& /*events*/) { return true; };
  channel->peerClosed(kBroken);
  EXPECT_EQ(channel->state(), PeerChannel::State::kFailed);
  EXPECT_EQ(channel->failure().code(), kBroken.code());
}

// A peer may ask for replacements without end.
TEST(PeerChannelLog, ReplacementsAreToldEverMoreRarely) {
  LogCapture log;
  const Faults faults{.replaceable = true};
  Pair pair(faults);
  for (int i = 0; i < 40; ++i) {
    pair.replace(faults);
    pair.settle();
  }
  // The 1st, 2nd, 4th, 8th, 16th and 32nd, at both ends.
  EXPECT_EQ(log.count("the engine is connecting again"), 12U) << log.all();
  EXPECT_EQ(log.count("again, over"), 12U) << log.all();
}

// Else progress would seem endless, and the thread making progress would never
// sleep.
TEST_F(PeerChannelTest, WhatABrokenConnectionTellsAgainIsNoProgress) {
  connection->breakWith = kBroken;
  connection->onPoll = [](ConnectionEvents& /*events*/) { return true; };
  EXPECT_TRUE(channel->poll());
  EXPECT_EQ(channel->state(), PeerChannel::State::kFailed);
  EXPECT_FALSE(channel->poll());
}

TEST_F(PeerChannelTest, ConnectionStaysWhileACopyRunsOutsideOfTheLock) {
  connection->jobs.emplace_back();
  CopyJob job;
  ASSERT_TRUE(channel->claimCopy(job));
  // Meanwhile a second thread sees the peer's end, and drops idle channels.
  EpollWaiter epoll;
  ChannelTable table(epoll);
  table.add({}, {}, channel, std::nullopt);
  channel->fail(kBroken);
  std::vector<ChannelTable::Retired> closed;
  table.reap(closed);
  EXPECT_TRUE(closed.empty())
      << "the connection is gone, but a copy of it is running";
  if (closed.empty()) {
    channel->finishCopy(job); // else the connection is null
    table.reap(closed);
    EXPECT_EQ(closed.size(), 1U);
  }
}

TEST_F(PeerChannelTest, EagerMessageOfAnUnknownGroupGivesItsCreditBack) {
  auto eager = message(MessageType::kEager, 0);
  eager.group = 999;
  for (int i = 0; i < 20; ++i) {
    const Bytes payload(64 * 1024);
    eager.payloadSize = static_cast<uint32_t>(payload.size());
    deliver(eager, payload);
  }
  EXPECT_GE(countSent(MessageType::kCredit), 1U);
}

TEST_F(PeerChannelTest, AnnouncedMessageOfAnUnknownGroupIsRefused) {
  auto announce = message(MessageType::kRts, 0);
  announce.group = 999;
  announce.id = 1234;
  deliver(announce);
  ASSERT_EQ(countSent(MessageType::kFinish), 1U);
  EXPECT_EQ(connection->sent.back().id, 1234U);
  EXPECT_EQ(connection->sent.back().status, FinishStatus::kGroupGone);
}

TEST_F(PeerChannelTest, AnnouncedMessagesOfAClosedGroupAreRefused) {
  auto announce = message(MessageType::kRts, 0);
  announce.id = 1;
  deliver(announce);
  group->close(Status(ErrorCode::kCancelled, "over"));
  EXPECT_EQ(countSent(MessageType::kFinish), 1U); // for the kept announcement
  announce.id = 2;
  deliver(announce);
  EXPECT_EQ(countSent(MessageType::kFinish), 2U);
  EXPECT_EQ(connection->sent.back().status, FinishStatus::kGroupGone);
}

} // namespace
} // namespace dlslime::testing
