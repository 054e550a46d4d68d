#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "base/random.h"
#include "engine/bootstrap/wire_records.h"
#include "engine/peer/group_registry.h"
#include "fakes/peers/faulty_connection.h"

namespace dlslime::testing {

// A process's half of the protocol, driven by hand: groups, and a channel to a
// peer over any connection. No threads, no lock.
class Endpoint {
 public:
  explicit Endpoint(Outbound::Limits limits = {16 * 1024, 1024 * 1024})
      : limits_(limits) {}

  std::shared_ptr<PeerChannel> connect(
      std::unique_ptr<Connection> connection,
      const Bytes& peerInstance = {}) {
    PeerIdentity peer;
    peer.pid = 4242;
    peer.host = "elsewhere";
    peer.instance = peerInstance;
    auto made = std::make_shared<PeerChannel>(
        groupRegistry, completions, regions, limits_, peer);
    made->connected(std::move(connection), {});
    channels.push_back(made);
    return made;
  }
  std::shared_ptr<Group>
  join(int rank, int size, uint64_t epoch = 1, const char* name = "group") {
    GroupOptions options;
    options.name = name;
    options.rank = rank;
    options.size = size;
    return groupRegistry.add(epoch, std::move(options));
  }
  // Asks the peer behind `channel` to join as `rank` of the group.
  void reach(
      Group& group,
      int rank,
      const std::shared_ptr<PeerChannel>& channel,
      uint32_t remoteGroup) {
    std::vector<int> ignored;
    group.links().resolve(rank);
    group.links().takeUnresolved(ignored);
    Joins::send(group, rank, channel, remoteGroup);
  }
  void send(Group& group, const OperationPtr& operation) {
    group.post(operation);
    settle();
  }
  void receive(Group& group, const OperationPtr& operation) {
    group.post(operation);
    settle();
  }
  // Cancels, by the rules of Engine::cancel().
  void cancel(Group& group, const OperationPtr& operation, const Status& why) {
    if (!operation->done() && !group.cancelHere(operation, why) &&
        operation->holder != nullptr) {
      operation->holder->cancel(operation, why);
    }
    settle();
  }
  bool poll() {
    bool any = false;
    for (const auto& channel : channels) {
      any |= channel->poll();
      CopyJob job;
      while (channel->claimCopy(job)) {
        job.error = job.run(job);
        channel->finishCopy(job);
        any = true;
      }
      if (channel->connection()
              .takeRetired()) { // destroys the severed connection
        channel->quieted();
      }
    }
    answerJoins();
    settle();
    return any;
  }
  // Stands for the wire-up thread, which registers memory before answering
  // joins.
  void answerJoins() {
    for (const auto& [channel, join, unprepared] :
         groupRegistry.joins().takeWaiting()) {
      for (const auto& operation : unprepared.operations) {
        operation->preparedBy = unprepared.registrar;
      }
      groupRegistry.joins().onJoin(channel, join);
    }
  }
  // Tells completions, as an engine does after unlocking.
  void settle() {
    completions.take().tell();
  }

  PeerIdentity self{randomBytes(kInstanceBytes), "", "here", 0, 4243, 0, 0, ""};
  RegionTable regions{self, [] {}};
  Completions completions;
  GroupRegistry groupRegistry{completions, [] {}};
  std::vector<std::shared_ptr<PeerChannel>> channels;

 private:
  const Outbound::Limits limits_;
};

// Two endpoints in a group of two, connected by a wire with faults on order.
class Pair {
 public:
  explicit Pair(
      Faults faults = {},
      Outbound::Limits limits = {16 * 1024, 1024 * 1024})
      : ends_{Endpoint(limits), Endpoint(limits)} {
    for (int i = 0; i < 2; ++i) {
      end(i).connect(
          std::make_unique<FaultyConnection>(wire, i, 1 - i, faults),
          end(1 - i).self.instance);
      groups_[i] = end(i).join(i, 2);
    }
    for (int i = 0; i < 2; ++i) {
      end(i).reach(group(i), 1 - i, end(i).channels[0], groups_[1 - i]->id());
    }
  }

  Endpoint& end(int i) {
    return ends_[i];
  }
  Group& group(int i) {
    return *groups_[i];
  }
  PeerChannel& channel(int i) {
    return *ends_[i].channels[0];
  }
  void send(int from, const OperationPtr& operation) {
    end(from).send(group(from), operation);
  }
  void receive(int at, const OperationPtr& operation) {
    end(at).receive(group(at), operation);
  }
  void cancel(int at, const OperationPtr& operation) {
    end(at).cancel(
        group(at), operation, Status(ErrorCode::kTimeout, "taken back"));
  }
  // Polls both ends until nothing happens for a while: messages may be delayed
  // by some polls.
  void settle(int quietPolls = 40, int most = 200000) {
    for (int quiet = 0; quiet < quietPolls && most > 0; --most) {
      const bool first = end(0).poll();
      const bool second = end(1).poll();
      quiet = first || second ? 0 : quiet + 1;
    }
  }

  // Severs the connection at an end; the peer notices in poll().
  void sever(int i) {
    channel(i).sever(Status(ErrorCode::kTransportFailed, "on purpose"));
    end(i).settle();
  }
  // Gives both ends a new connection, as an engine would.
  void replace(const Faults& faults) {
    for (int i = 0; i < 2; ++i) {
      sever(i);
      while (!channel(i).awaitsConnection()) {
        ASSERT_TRUE(channel(i).alive()) << channel(i).failure().message();
        end(i).poll();
      }
    }
    wire = std::make_shared<Wire>();
    const uint64_t seen[] = {channel(0).lastSeen(), channel(1).lastSeen()};
    for (int i = 0; i < 2; ++i) {
      channel(i).resumed(
          std::make_unique<FaultyConnection>(wire, i, 1 - i, faults),
          {},
          channel(i).connection().generation() + 1,
          seen[1 - i],
          i == 0);
      end(i).settle();
    }
  }

  std::shared_ptr<Wire> wire = std::make_shared<Wire>();

 private:
  Endpoint ends_[2];
  std::shared_ptr<Group> groups_[2];
};

} // namespace dlslime::testing
