#include "engine/peer/joins.h"

#include <algorithm>

#include "engine/peer/group_registry.h"

namespace dlslime {

using State = Group::LinkState;

namespace {

Status closedByOther(const Group& group) {
  return {
      ErrorCode::kPeerFailed,
      "the other end of \"" + group.options().name + "\" has been closed"};
}

Status refusalOf(const wire::Refused& refused) {
  using wire::RefusalReason;
  const auto amount = std::to_string(refused.amount);
  std::string why = "the other end accepts no endpoint now";
  switch (refused.reason) {
    case RefusalReason::kTaken:
      why =
          "the endpoint with this address has a different peer: an endpoint "
          "has "
          "one peer, a hub has many";
      break;
    case RefusalReason::kTooManyGuests:
      why = "the hub has " + amount +
          " guests that the hub's owner has not accepted: connect again once "
          "the owner has";
      break;
    case RefusalReason::kTooMuchUnread:
      why = "the hub keeps " + amount +
          " bytes of guests that have left, which the hub's owner has not read "
          "(DLSLIME_UNEXPECTED_LIMIT): connect again once the owner has";
      break;
    case RefusalReason::kTooManyOfOne:
      why = "this process has " + amount +
          " endpoints at the hub, and may have no more: close "
          "some";
      break;
  }
  return {ErrorCode::kPeerFailed, why};
}

// Also answers a peer's late acceptance, after this process has left.
void sendLeave(
    PeerChannel& channel,
    uint32_t remoteGroup,
    uint32_t rank,
    bool aborted) REQUIRES(kEngineLock) {
  channel.parts()->out.sendControl(wire::Leave{remoteGroup, rank, aborted});
}

void refuse(
    PeerChannel& channel,
    const wire::Join& join,
    const AcceptQueue::Refusal& why) REQUIRES(kEngineLock) {
  channel.parts()->out.sendControl(
      wire::Refused{join.joinersGroup, join.target, why.reason, why.amount});
}

void sayStale(PeerChannel& channel, const wire::Join& join)
    REQUIRES(kEngineLock) {
  channel.parts()->out.sendControl(wire::Stale{join.joinersGroup, join.target});
}

// Most endpoints of a process at a hub, where a process needs only an endpoint
// or some for each peer.
constexpr size_t kMostOfOneProcess = 4096;
} // namespace

void Joins::leave(Group& group, bool aborted) {
  for (int rank = 0; rank < group.size(); ++rank) {
    const auto& link = group.link(rank);
    if (link.state != State::kReady || rank == group.rank()) {
      continue;
    }
    sendLeave(
        *link.channel,
        link.remoteGroup,
        static_cast<uint32_t>(group.rank()),
        aborted);
    link.channel->parts()->out.flushQueued();
  }
}

void Joins::send(
    Group& group,
    int rank,
    const std::shared_ptr<PeerChannel>& channel,
    uint32_t remoteGroup) {
  auto& link = group.link(rank);
  if (link.state != State::kResolving) {
    return;
  }
  link.state = State::kJoining;
  link.channel = channel;
  group.links().use(link, channel->connection().registrar());
  channel->parts()->out.sendControl(wire::Join{
      remoteGroup,
      static_cast<uint32_t>(group.rank()),
      static_cast<uint32_t>(rank),
      group.id(),
      group.epoch()});
}

void Joins::onMessage(
    const std::shared_ptr<PeerChannel>& channel,
    const MessageHeader& header) {
  switch (header.type) {
    case MessageType::kJoin:
      return onJoin(channel, wire::decode<wire::Join>(header));
    case MessageType::kJoined:
      return onJoined(channel, wire::decode<wire::Joined>(header));
    case MessageType::kStale:
      return onStale(*channel, wire::decode<wire::Stale>(header));
    case MessageType::kLeave:
      return onLeave(*channel, wire::decode<wire::Leave>(header));
    case MessageType::kRefused:
      return onRefused(*channel, wire::decode<wire::Refused>(header));
    default:
      return; // the channel passes no other types
  }
}

void Joins::onJoin(
    const std::shared_ptr<PeerChannel>& channel,
    const wire::Join& join) {
  using wire::RefusalReason;
  const auto group = groups_.find(join.group);
  const auto source = static_cast<int>(join.source);
  const bool known = group != nullptr && !group->closed() && source >= 0 &&
      source < group->size() && group->epoch() == join.epoch &&
      group->rank() == static_cast<int>(join.target) &&
      (source != group->rank() || channel->toItself());
  if (group != nullptr && group->taken()) {
    refuse(*channel, join, {RefusalReason::kTaken, 0});
    return;
  }
  if (!known) {
    sayStale(*channel, join);
    return;
  }
  if (group->options().acceptQueue) {
    admit(channel, join, *group);
    return;
  }
  // Several groups of a process may claim to be this rank.
  const auto& link = group->link(source);
  const auto id = join.joinersGroup;
  const bool another = !group->expects(channel->peer().instance, id) ||
      (link.state == State::kReady &&
       (link.channel != channel || link.remoteGroup != id));
  if (another && group->options().oneLife) {
    refuse(*channel, join, {RefusalReason::kTaken, 0});
  } else if (another || link.state == State::kFailed) {
    sendLeave(*channel, id, join.target, false);
  } else {
    accept(channel, join, *group);
  }
}

// Sends Joined before waiting operations, since the peer takes no messages of a
// group before Joined. Nor does the peer send any, so memory posted here is
// prepared first.
void Joins::accept(
    const std::shared_ptr<PeerChannel>& channel,
    const wire::Join& join,
    Group& group) {
  auto unprepared = findUnprepared(
      group, static_cast<int>(join.source), channel->connection().registrar());
  if (!unprepared.operations.empty()) {
    // A repeated Join, never sent by a correct peer, replaces the earlier Join.
    std::erase_if(waiting_, [&](const Waiting& other) {
      return other.channel == channel && other.join.group == join.group &&
          other.join.source == join.source;
    });
    waiting_.push_back({channel, join, std::move(unprepared)});
    wake_();
    return;
  }
  channel->parts()->out.sendControl(
      wire::Joined{join.joinersGroup, join.target, join.source, group.id()});
  group.linkReady(static_cast<int>(join.source), channel, join.joinersGroup);
}

std::shared_ptr<Group> Joins::asked(
    const PeerChannel& channel,
    uint32_t group,
    uint32_t source) const {
  auto found = groups_.find(group);
  const auto rank = static_cast<int>(source);
  const bool theirs = found != nullptr && rank >= 0 && rank < found->size() &&
      found->link(rank).channel.get() == &channel;
  return theirs ? found : nullptr;
}

void Joins::onJoined(
    const std::shared_ptr<PeerChannel>& channel,
    const wire::Joined& joined) {
  if (groups_.find(joined.group) == nullptr) {
    sendLeave(*channel, joined.acceptedGroup, joined.joiner, false);
  } else if (const auto group = asked(*channel, joined.group, joined.source)) {
    group->linkReady(
        static_cast<int>(joined.source), channel, joined.acceptedGroup);
  }
}

void Joins::onStale(const PeerChannel& channel, const wire::Stale& stale) {
  const auto group = asked(channel, stale.group, stale.source);
  if (group == nullptr) {
    return;
  }
  const auto rank = static_cast<int>(stale.source);
  auto& link = group->link(rank);
  if (group->options().oneLife) {
    groups_.failLink(group, rank, closedByOther(*group));
  } else if (link.state == State::kJoining) {
    link.state = State::kResolving; // the wire-up thread reads the record again
    link.channel = nullptr;
  }
}

void Joins::onLeave(const PeerChannel& channel, const wire::Leave& leave) {
  const auto group = asked(channel, leave.group, leave.source);
  if (group == nullptr) {
    return;
  }
  const auto rank = static_cast<int>(leave.source);
  if (group->options().oneLife) {
    groups_.failLink(group, rank, closedByOther(*group));
    return;
  }
  auto& link = group->link(rank);
  link.aborted = leave.aborted;
  groups_.failLink(
      group,
      rank,
      Status(
          ErrorCode::kPeerFailed,
          "rank " + std::to_string(rank) +
              (link.aborted ? " has aborted its process group, and left"
                            : " has left the group (its process group was "
                              "shut down)")));
}

void Joins::onRefused(
    const PeerChannel& channel,
    const wire::Refused& refused) {
  if (const auto group = asked(channel, refused.group, refused.source)) {
    groups_.failLink(
        group, static_cast<int>(refused.source), refusalOf(refused));
  }
}

// Returns the number of guests of the hub linked by the channel, accepted or
// not.
size_t Joins::guestsBy(const PeerChannel& channel, const AcceptQueue* hub)
    const {
  const auto& groups = groups_.groups();
  const auto count = std::count_if(
      groups.begin(),
      groups.end(),
      [&](const auto& entry) REQUIRES(kEngineLock) {
        auto& group = *entry.second;
        return group.options().hub.get() == hub &&
            group.link(1).state == State::kReady &&
            group.link(1).channel.get() == &channel;
      });
  return static_cast<size_t>(count);
}

// Makes a group for a new guest. A guest whose connection breaks before Joined
// arrives joins again as a new guest; the first group has failed by then.
void Joins::admit(
    const std::shared_ptr<PeerChannel>& channel,
    const wire::Join& join,
    const Group& hub) {
  const auto& acceptQueue = hub.options().acceptQueue;
  if (join.source == static_cast<uint32_t>(hub.rank())) {
    sayStale(*channel, join);
    return;
  }
  if (const auto why = acceptQueue->refusal(*channel)) {
    refuse(*channel, join, *why);
    return;
  }
  const auto there = groups_.size() < kMostOfOneProcess
      ? 0
      : guestsBy(*channel, acceptQueue.get());
  if (there >= kMostOfOneProcess) {
    refuse(*channel, join, {wire::RefusalReason::kTooManyOfOne, there});
    return;
  }
  auto options = hub.options();
  options.hub = std::exchange(options.acceptQueue, nullptr);
  const auto group = groups_.add(hub.epoch(), std::move(options));
  acceptQueue->add(group, channel);
  accept(channel, join, *group);
}

void Joins::setTaken(Group& group) {
  group.setTaken();
  for (int rank = 0; rank < group.size(); ++rank) {
    auto& link = group.link(rank);
    if (link.state != State::kReady) {
      continue;
    }
    wire::Join join; // the Join, as far as refuse() reads it
    join.joinersGroup = link.remoteGroup;
    join.target = static_cast<uint32_t>(group.rank());
    refuse(*link.channel, join, {wire::RefusalReason::kTaken, 0});
    group.failLink(rank, {ErrorCode::kCancelled, "it is not the peer"});
  }
}

} // namespace dlslime
