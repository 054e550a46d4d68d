#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "engine/channel/peer_channel.h"
#include "engine/one_sided/region.h"
#include "fakes/guarded_operation.h"
#include "fakes/peers/endpoint.h"
#include "fakes/peers/scripted_connection.h"
#include "fakes/world.h"

namespace dlslime::testing {

// Rank 0 of a group of two, with a channel to rank 1 driven by hand.
class ScriptedChannel : public ::testing::Test {
 protected:
  explicit ScriptedChannel(bool pushing = false) {
    auto made = std::make_unique<ScriptedConnection>();
    made->setPushing(pushing);
    connection = made.get();
    channel = endpoint.connect(std::move(made));
    group = endpoint.join(0, 2);
    endpoint.reach(*group, 1, channel, 77);
    MessageHeader joined;
    joined.type = MessageType::kJoined;
    joined.group = group->id();
    joined.source = 1;
    joined.id = 77;
    deliver(joined);
  }
  void deliver(MessageHeader header, const Bytes& payload = {}) {
    header.sequence = ++sequence;
    channel->events().onMessage(header, payload);
    endpoint.settle();
  }
  MessageHeader message(MessageType type, uint32_t tag) const {
    MessageHeader header;
    header.type = type;
    header.group = group->id();
    header.source = 1;
    header.tag = tag;
    return header;
  }
  // Lends the region to the peer, as the peer asks.
  void lend(const RegionPtr& region) {
    auto resolve = message(MessageType::kResolve, 0);
    resolve.id = region->handle().id;
    resolve.address = region->handle().secret;
    const auto before = countSent(MessageType::kResolved);
    deliver(resolve);
    EXPECT_EQ(countSent(MessageType::kResolved), before + 1);
  }
  // Returns a receive whose bytes the connection has begun to fetch.
  GuardedPtr pulled(int source) {
    connection->canPull = true;
    auto receive = GuardedOperation::receive(source, 5, 100000);
    endpoint.receive(*group, receive);
    auto announce = message(MessageType::kRts, 5);
    announce.length = 100000;
    announce.id = 9;
    deliver(announce);
    EXPECT_EQ(connection->pulls.size(), 1U);
    return receive;
  }
  size_t countSent(MessageType type) const {
    return static_cast<size_t>(std::count_if(
        connection->sent.begin(),
        connection->sent.end(),
        [&](const auto& header) { return header.type == type; }));
  }

  Endpoint endpoint;
  ScriptedConnection* connection;
  std::shared_ptr<PeerChannel> channel;
  std::shared_ptr<Group> group;
  uint64_t sequence = 0;
};

} // namespace dlslime::testing
