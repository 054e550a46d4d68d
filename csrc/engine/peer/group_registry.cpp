#include "engine/peer/group_registry.h"

#include <algorithm>
#include <iterator>

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

} // namespace

std::shared_ptr<Group> GroupRegistry::add(
    uint64_t epoch,
    GroupOptions options) {
  while (groups_.contains(nextId_)) {
    ++nextId_; // ids wrap around where guests come and go
  }
  const auto id = nextId_++;
  auto group = std::make_shared<Group>(
      id, epoch, std::move(options), completions_, wake_);
  groups_.emplace(id, group);
  return group;
}

void GroupRegistry::remove(Group& group, bool aborted) {
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
    link.channel->out().flushQueued();
  }
  lastGroup_ = nullptr;
  groups_.erase(group.id());
}

std::shared_ptr<Group> GroupRegistry::find(uint32_t id) const {
  const auto found = groups_.find(id);
  return found == groups_.end() ? nullptr : found->second;
}

std::vector<std::shared_ptr<Group>> GroupRegistry::all() const {
  std::vector<std::shared_ptr<Group>> result;
  result.reserve(groups_.size());
  for (const auto& [id, group] : groups_) {
    result.push_back(group);
  }
  return result;
}

Group* GroupRegistry::groupOf(
    const PeerChannel& channel,
    uint32_t group,
    uint32_t source) {
  if (lastGroup_ == nullptr || lastGroup_->id() != group) {
    const auto found = groups_.find(group);
    if (found == groups_.end()) {
      return nullptr;
    }
    lastGroup_ = found->second.get();
  }
  if (lastGroup_->closed() ||
      source >= static_cast<uint32_t>(lastGroup_->size())) {
    return nullptr;
  }
  const auto& link = lastGroup_->link(static_cast<int>(source));
  const bool theirs =
      link.state == State::kReady && link.channel.get() == &channel;
  return theirs ? lastGroup_ : nullptr;
}

PeerChannel* GroupRegistry::channelTo(const Operation& operation) {
  const auto id = static_cast<uint32_t>(operation.groupKey);
  auto* group = lastGroup_;
  if (group == nullptr || group->id() != id) {
    const auto found = groups_.find(id);
    group = found == groups_.end() ? nullptr : found->second.get();
  }
  const bool one = group != nullptr && operation.peer() >= 0 &&
      operation.peer() < group->size();
  return one ? group->link(operation.peer()).channel.get() : nullptr;
}

void GroupRegistry::sendJoin(
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
  group.use(link, channel->registrar());
  channel->out().sendControl(wire::Join{
      remoteGroup,
      static_cast<uint32_t>(group.rank()),
      static_cast<uint32_t>(rank),
      group.id(),
      group.epoch()});
}

void GroupRegistry::onGroupMessage(
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

void GroupRegistry::onJoin(
    const std::shared_ptr<PeerChannel>& channel,
    const wire::Join& join) {
  using wire::RefusalReason;
  const auto group = find(join.group);
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

// Also answers a peer's late acceptance, after this process has left.
void GroupRegistry::sendLeave(
    PeerChannel& channel,
    uint32_t remoteGroup,
    uint32_t rank,
    bool aborted) {
  channel.out().sendControl(wire::Leave{remoteGroup, rank, aborted});
}

void GroupRegistry::failLink(
    const std::shared_ptr<Group>& group,
    int rank,
    const Status& why) {
  group->failLink(rank, why);
  forgetIfGone(group);
}

// Sends Joined before waiting operations, since the peer takes no messages of a
// group before Joined. Nor does the peer send any, so memory posted here is
// prepared first.
void GroupRegistry::accept(
    const std::shared_ptr<PeerChannel>& channel,
    const wire::Join& join,
    Group& group) {
  auto unprepared =
      group.unprepared(static_cast<int>(join.source), channel->registrar());
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
  channel->out().sendControl(
      wire::Joined{join.joinersGroup, join.target, join.source, group.id()});
  group.linkReady(static_cast<int>(join.source), channel, join.joinersGroup);
}

void GroupRegistry::refuse(
    PeerChannel& channel,
    const wire::Join& join,
    const AcceptQueue::Refusal& why) {
  channel.out().sendControl(
      wire::Refused{join.joinersGroup, join.target, why.reason, why.amount});
}

void GroupRegistry::sayStale(PeerChannel& channel, const wire::Join& join) {
  channel.out().sendControl(wire::Stale{join.joinersGroup, join.target});
}

std::shared_ptr<Group> GroupRegistry::asked(
    const PeerChannel& channel,
    uint32_t group,
    uint32_t source) const {
  auto found = find(group);
  const auto rank = static_cast<int>(source);
  const bool theirs = found != nullptr && rank >= 0 && rank < found->size() &&
      found->link(rank).channel.get() == &channel;
  return theirs ? found : nullptr;
}

void GroupRegistry::onJoined(
    const std::shared_ptr<PeerChannel>& channel,
    const wire::Joined& joined) {
  if (find(joined.group) == nullptr) {
    sendLeave(*channel, joined.acceptedGroup, joined.joiner, false);
  } else if (const auto group = asked(*channel, joined.group, joined.source)) {
    group->linkReady(
        static_cast<int>(joined.source), channel, joined.acceptedGroup);
  }
}

void GroupRegistry::onStale(
    const PeerChannel& channel,
    const wire::Stale& stale) {
  const auto group = asked(channel, stale.group, stale.source);
  if (group == nullptr) {
    return;
  }
  const auto rank = static_cast<int>(stale.source);
  auto& link = group->link(rank);
  if (group->options().oneLife) {
    failLink(group, rank, closedByOther(*group));
  } else if (link.state == State::kJoining) {
    link.state = State::kResolving; // the wire-up thread reads the record again
    link.channel = nullptr;
  }
}

void GroupRegistry::onLeave(
    const PeerChannel& channel,
    const wire::Leave& leave) {
  const auto group = asked(channel, leave.group, leave.source);
  if (group == nullptr) {
    return;
  }
  const auto rank = static_cast<int>(leave.source);
  if (group->options().oneLife) {
    failLink(group, rank, closedByOther(*group));
    return;
  }
  auto& link = group->link(rank);
  link.aborted = leave.aborted;
  failLink(
      group,
      rank,
      Status(
          ErrorCode::kPeerFailed,
          "rank " + std::to_string(rank) +
              (link.aborted ? " has aborted its process group, and left"
                            : " has left the group (its process group was "
                              "shut down)")));
}

void GroupRegistry::onRefused(
    const PeerChannel& channel,
    const wire::Refused& refused) {
  if (const auto group = asked(channel, refused.group, refused.source)) {
    failLink(group, static_cast<int>(refused.source), refusalOf(refused));
  }
}

void GroupRegistry::sendNote(const Transfer& transfer) {
  if (const auto group = find(transfer.groupKey)) {
    group->post(transfer.note);
  } else {
    completions_.finish(
        transfer.note,
        Status(ErrorCode::kCancelled, "this process has left the group"));
  }
}

Unprepared GroupRegistry::unprepared(
    const PeerChannel& channel,
    MemoryRegistrar* registrar) {
  Unprepared all{registrar, {}};
  for (const auto& [id, group] : groups_) {
    for (int rank = 0; rank < group->size(); ++rank) {
      if (group->link(rank).channel.get() == &channel) {
        auto found = group->unprepared(rank, registrar).operations;
        std::move(
            found.begin(), found.end(), std::back_inserter(all.operations));
      }
    }
  }
  return all;
}

void GroupRegistry::onChannelResumed(PeerChannel& channel) {
  for (const auto& [id, group] : groups_) {
    for (int rank = 0; rank < group->size(); ++rank) {
      auto& link = group->link(rank);
      if (link.channel.get() == &channel) {
        group->use(link, channel.registrar());
      }
    }
  }
}

void GroupRegistry::onChannelFailed(PeerChannel& channel, const Status& why) {
  for (const auto& group : all()) { // a copy: failLink() may forget guests
    for (int rank = 0; rank < group->size(); ++rank) {
      auto& link = group->link(rank);
      if (link.channel.get() != &channel) {
        continue;
      }
      if (link.state == State::kJoining) {
        group->joinBroke(rank, why);
      } else {
        failLink(group, rank, why);
      }
    }
  }
}

} // namespace dlslime
