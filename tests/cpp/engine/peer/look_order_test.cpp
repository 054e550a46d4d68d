#include "engine/peer/look_order.h"

#include <gtest/gtest.h>

#include <vector>

#include "engine/peer/channel_table.h"
#include "fakes/guarded_operation.h"
#include "fakes/log_capture.h"
#include "fakes/peers/endpoint.h"
#include "fakes/peers/scripted_connection.h"
#include "fakes/world.h"

namespace dlslime::testing {
namespace {

// More looks than a channel without news stays busy for.
constexpr int kLong = 1000;
constexpr int kMost = 64; // messages per poll

// Channels in a LookOrder, with counts of their polls.
class LookOrderTest : public ::testing::Test {
 protected:
  struct Peer {
    std::shared_ptr<PeerChannel> channel;
    ScriptedConnection* connection = nullptr;
    int polls = 0;
    bool news = false;
  };

  void addPeers(size_t count) {
    peers.resize(count);
    for (auto& peer : peers) {
      auto made = std::make_unique<ScriptedConnection>();
      peer.connection = made.get();
      made->onPoll = [&peer](ConnectionEvents& /*events*/) {
        ++peer.polls;
        return std::exchange(peer.news, false);
      };
      peer.channel = endpoint.connect(std::move(made));
      looks.add(*peer.channel);
    }
  }
  // Makes all channels without work quiet.
  void calm() {
    for (int i = 0; i < kLong; ++i) {
      looks.lookAtAll(kMost);
    }
    forget();
  }
  void expectPolls(int ofEach) const {
    for (const auto& peer : peers) {
      EXPECT_EQ(peer.polls, ofEach);
    }
  }
  void forget() {
    for (auto& peer : peers) {
      peer.polls = 0;
    }
  }

  Endpoint endpoint;
  std::vector<Peer> peers;
  LookOrder looks;
};

TEST_F(LookOrderTest, NewChannelsAreBusy) {
  addPeers(10);
  EXPECT_EQ(looks.busy(), 10U);
  looks.lookFor(nullptr, kMost);
  expectPolls(1);
}

TEST_F(LookOrderTest, ChannelsWithoutNewsBecomeQuiet) {
  addPeers(256);
  calm();
  EXPECT_EQ(looks.busy(), 0U);
  looks.lookFor(nullptr, kMost);
  expectPolls(0);
}

TEST_F(LookOrderTest, LookCostsTheSameWithManyQuietChannels) {
  addPeers(256);
  calm();
  const auto polls = [&] {
    int sum = 0;
    for (const auto& peer : peers) {
      sum += peer.polls;
    }
    return sum;
  };
  looks.lookInTurn(kMost);
  const int each = polls();
  EXPECT_GE(each, 1);
  EXPECT_LE(each, 8);
  for (int i = 1; i < 100; ++i) {
    looks.lookInTurn(kMost);
  }
  EXPECT_EQ(polls(), 100 * each);
}

TEST_F(LookOrderTest, EveryQuietChannelHasItsTurn) {
  addPeers(37);
  calm();
  for (size_t i = 0; i < peers.size(); ++i) {
    looks.lookInTurn(kMost);
  }
  for (const auto& peer : peers) {
    EXPECT_GE(peer.polls, 1);
  }
}

TEST_F(LookOrderTest, NewsMakesAQuietChannelBusy) {
  addPeers(20);
  calm();
  peers[13].news = true;
  bool any = false;
  for (size_t i = 0; i < peers.size(); ++i) {
    any |= looks.lookInTurn(kMost);
  }
  EXPECT_TRUE(any);
  EXPECT_EQ(looks.busy(), 1U);
  forget();
  looks.lookFor(nullptr, kMost);
  for (const auto& peer : peers) {
    EXPECT_EQ(peer.polls, &peer == &peers[13] ? 1 : 0);
  }
}

TEST_F(LookOrderTest, AwaitedChannelIsPolledByEveryLook) {
  addPeers(20);
  calm();
  for (int i = 0; i < kLong; ++i) {
    looks.lookFor(peers[5].channel.get(), kMost);
  }
  EXPECT_EQ(peers[5].polls, kLong);
  peers[5].news = true;
  EXPECT_TRUE(looks.lookFor(peers[5].channel.get(), kMost));
  EXPECT_EQ(looks.busy(), 1U);
  forget();
  looks.lookFor(peers[5].channel.get(), kMost); // busy and awaited
  EXPECT_EQ(peers[5].polls, 1);
}

TEST_F(LookOrderTest, ChannelWithWorkStaysBusy) {
  addPeers(2);
  const auto group = endpoint.join(0, 2);
  endpoint.reach(*group, 1, peers[1].channel, 77);
  MessageHeader joined;
  joined.type = MessageType::kJoined;
  joined.group = group->id();
  joined.source = 1;
  joined.id = 77;
  joined.sequence = 1;
  peers[1].channel->events().onMessage(joined, {});
  const auto send = GuardedOperation::send(1, 0, pattern(100000)); // announced
  endpoint.send(*group, send);
  calm();
  EXPECT_EQ(looks.busy(), 1U);
  EXPECT_TRUE(peers[1].channel->working());
  looks.lookFor(nullptr, kMost);
  EXPECT_EQ(peers[1].polls, 1);
  peers[1].channel->fail(Status(ErrorCode::kPeerFailed, "the peer is gone"));
}

TEST_F(LookOrderTest, WorkPostedOnAQuietChannelMakesTheChannelBusy) {
  addPeers(3);
  calm();
  peers[2].connection->full = true; // the message waits for room
  peers[2].channel->parts()->out.sendControl(wire::Reshare{1});
  for (size_t i = 0; i < peers.size(); ++i) {
    looks.lookInTurn(kMost);
  }
  EXPECT_EQ(looks.busy(), 1U);
  peers[2].connection->full = false;
  EXPECT_TRUE(looks.lookFor(nullptr, kMost));
  EXPECT_EQ(peers[2].connection->sent.size(), 1U);
}

TEST_F(LookOrderTest, MessagesToBeSentAgainKeepAChannelBusy) {
  addPeers(2);
  const LogCapture log;
  auto& channel = *peers[0].channel;
  auto* const broken = peers[0].connection;
  broken->when = ReplaceAbility::When::kBroken;
  channel.parts()->out.sendControl(wire::Reshare{1});
  broken->lost.push_back({broken->sent.back(), {}});
  broken->breakWith = Status(ErrorCode::kTransportFailed, "a cable");
  looks.lookAtAll(kMost); // severs the connection
  looks.lookAtAll(kMost); // finds the connection drained
  channel.connection().takeRetired();
  channel.quieted();
  auto made = std::make_unique<ScriptedConnection>();
  auto* const replacement = made.get();
  replacement->full = true;
  channel.resumed(std::move(made), {}, 2, 0, true);
  calm();
  EXPECT_EQ(looks.busy(), 1U);
  replacement->full = false;
  looks.lookFor(nullptr, kMost);
  EXPECT_EQ(replacement->sent.size(), 1U);
}

TEST_F(LookOrderTest, RemovedChannelIsNotPolled) {
  addPeers(6);
  looks.remove(*peers[0].channel);
  calm();
  looks.remove(*peers[1].channel);
  for (int i = 0; i < kLong; ++i) {
    looks.lookAtAll(kMost);
    looks.lookInTurn(kMost);
  }
  EXPECT_EQ(peers[0].polls, 0);
  EXPECT_EQ(peers[1].polls, 0);
  EXPECT_GE(peers[2].polls, kLong);
}

TEST_F(LookOrderTest, FullLookPollsEveryChannelOnce) {
  addPeers(50);
  calm();
  peers[7].news = peers[8].news = peers[49].news = true;
  EXPECT_TRUE(looks.lookAtAll(kMost));
  expectPolls(1);
  EXPECT_EQ(looks.busy(), 3U);
}

} // namespace
} // namespace dlslime::testing
