#include "engine/peer/group_report.h"

#include <utility>

#include "engine/channel/peer_channel.h"

namespace dlslime {

PeerReport reportPeer(Group& group, int rank) {
  const auto& link = group.link(rank);
  PeerReport report;
  report.rank = rank;
  report.counters = link.counters;
  if (link.channel) {
    report.route = link.channel->connection().route();
    auto info = link.channel->connection().info();
    report.copy = info.copyName;
    report.devices = std::move(info.devices);
    report.nics = std::move(info.nics);
    report.replaced = link.channel->connection().generation() - 1;
    report.rejected = link.channel->connection().rejected();
    report.peer = link.channel->peer();
  }
  return report;
}

std::vector<PeerReport> reportPeers(Group& group) {
  std::vector<PeerReport> all;
  for (int rank = 0; rank < group.size(); ++rank) {
    if (group.link(rank).state != Group::LinkState::kUnresolved) {
      all.push_back(reportPeer(group, rank));
    }
  }
  for (const auto& operation : group.pending()) {
    for (auto& peer : all) {
      if (peer.rank == operation->peer()) {
        ++(operation->kind() == Operation::Kind::kReceive ? peer.pendingReceives
                                                          : peer.pendingSends);
      }
    }
  }
  return all;
}

std::string describeLink(Group& group, const Operation& operation) {
  const bool send = operation.kind() == Operation::Kind::kSend;
  if (operation.stage == Operation::Stage::kHeld) {
    return "the operation has not begun: earlier work in the operation's "
           "stream is "
           "not done, or an earlier operation with the tag waits for a stream";
  }
  if (operation.stage == Operation::Stage::kPulling ||
      operation.stage == Operation::Stage::kTransferring ||
      operation.stage == Operation::Stage::kQueued) {
    return "the transfer has started and does not proceed";
  }
  if (operation.peer() == Operation::kAnySource) {
    return "no rank has sent a message with this tag";
  }
  const auto& link = group.link(operation.peer());
  if (link.state == Group::LinkState::kReady) {
    return "the peer is connected over " + link.channel->connection().route() +
        (send
             ? ", and has not confirmed the message: no matching "
               "receive was posted at the peer, or the message is being fetched"
             : ", no matching send was seen");
  }
  if (link.state == Group::LinkState::kFailed) {
    return link.failure.message();
  }
  return "the peer has not been reached: " +
      (link.problem.empty() ? "it has not been looked for yet" : link.problem);
}

std::string describePending(Group& group, size_t most) {
  const auto pending = group.pending();
  std::string text;
  for (size_t i = 0; i < pending.size() && i < most; ++i) {
    text += (i == 0 ? "" : ", ") + pending[i]->describe();
  }
  if (pending.size() > most) {
    text += " and " + std::to_string(pending.size() - most) + " more";
  }
  return text.empty() ? "nothing" : text;
}

std::string describeFailures(Group& group) {
  std::string text;
  for (int rank = 0; rank < group.size(); ++rank) {
    const auto& link = group.link(rank);
    if (link.state == Group::LinkState::kFailed) {
      text += (text.empty() ? "rank " : "; rank ") + std::to_string(rank) +
          ": " + link.failure.message();
    }
  }
  return text;
}

} // namespace dlslime
