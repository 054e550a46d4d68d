#include "engine/peer/group_registry.h"

#include <algorithm>
#include <iterator>

#include "base/log.h"

namespace dlslime {

using State = Group::LinkState;

namespace {

Status closedByOther(const Group& group) {
  return {
      ErrorCode::kPeerFailed,
      "the other end of \"" + group.options().name + "\" has been closed"};
}

// What a kRefused tells.
Status refusalOf(const MessageHeader& answer) {
  const auto amount = std::to_string(answer.length);
  std::string why = "the other end takes nobody now";
  switch (RefusalReason{answer.tag}) {
    case RefusalReason::kTaken:
      why =
          "the endpoint with this address has another peer: each has one, and "
          "a hub has many";
      break;
    case RefusalReason::kTooManyGuests:
      why = "the hub has " + amount +
          " guests that its owner has not accepted: come again once it has";
      break;
    case RefusalReason::kTooMuchUnread:
      why = "the hub keeps " + amount +
          " bytes of guests that have left, which its owner has not read "
          "(DLSLIME_UNEXPECTED_LIMIT): come again once it has";
      break;
    case RefusalReason::kTooManyOfOne:
      why = "this process has " + amount +
          " endpoints at that hub, which are as many as it may have: close "
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
    ++nextId_; // a hub's guests come and go until the numbers begin anew
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
    const MessageHeader& header) {
  if (lastGroup_ == nullptr || lastGroup_->id() != header.group) {
    const auto found = groups_.find(header.group);
    if (found == groups_.end()) {
      return nullptr;
    }
    lastGroup_ = found->second.get();
  }
  if (lastGroup_->closed() ||
      header.source >= static_cast<uint32_t>(lastGroup_->size())) {
    return nullptr;
  }
  const auto& link = lastGroup_->link(static_cast<int>(header.source));
  const bool theirs =
      link.state == State::kReady && link.channel.get() == &channel;
  return theirs ? lastGroup_ : nullptr;
}

const PeerChannel* GroupRegistry::channelTo(const Operation& operation) {
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
  MessageHeader join;
  join.type = MessageType::kJoin;
  join.group = remoteGroup;
  join.source = static_cast<uint32_t>(group.rank());
  join.tag = static_cast<uint32_t>(rank);
  join.id = group.id();
  join.offset = group.epoch();
  channel->out().sendControl(join);
}

void GroupRegistry::onGroupMessage(
    const std::shared_ptr<PeerChannel>& channel,
    const MessageHeader& header) {
  if (header.type == MessageType::kJoin) {
    onJoin(channel, header);
  } else {
    onAnswer(channel, header);
  }
}

void GroupRegistry::onJoin(
    const std::shared_ptr<PeerChannel>& channel,
    const MessageHeader& join) {
  const auto group = find(join.group);
  const auto source = static_cast<int>(join.source);
  const bool known = group != nullptr && !group->closed() && source >= 0 &&
      source < group->size() && group->epoch() == join.offset &&
      group->rank() == static_cast<int>(join.tag) &&
      (source != group->rank() || channel->toItself());
  if (group != nullptr && group->taken()) {
    refuse(channel, join, MessageType::kRefused, {RefusalReason::kTaken, 0});
    return;
  }
  if (!known) {
    refuse(channel, join, MessageType::kStale);
    return;
  }
  if (group->options().acceptQueue) {
    admit(channel, join, *group);
    return;
  }
  // A process may have several groups that take themselves for this rank.
  const auto& link = group->link(source);
  const auto id = static_cast<uint32_t>(join.id);
  const bool another = !group->expects(channel->peer().instance, id) ||
      (link.state == State::kReady &&
       (link.channel != channel || link.remoteGroup != id));
  if (another && group->options().oneLife) {
    refuse(channel, join, MessageType::kRefused, {RefusalReason::kTaken, 0});
  } else if (another || link.state == State::kFailed) {
    refuse(channel, join, MessageType::kLeave);
  } else {
    accept(channel, join, *group);
  }
}

// Also to a peer that takes us for a member only now: we had asked to be one,
// and had left before it answered.
void GroupRegistry::sendLeave(
    PeerChannel& channel,
    uint32_t remoteGroup,
    uint32_t rank,
    bool aborted) {
  MessageHeader leave;
  leave.type = MessageType::kLeave;
  leave.group = remoteGroup;
  leave.source = rank;
  leave.tag = aborted ? 1 : 0;
  channel.out().sendControl(leave);
}

void GroupRegistry::failLink(
    const std::shared_ptr<Group>& group,
    int rank,
    const Status& why) {
  group->failLink(rank, why);
  forgetIfGone(group);
}

// First the answer, then what waited: the peer takes nothing of a group before
// it knows that we are in it. Nor does it send anything, so that what is posted
// here can be prepared before.
void GroupRegistry::accept(
    const std::shared_ptr<PeerChannel>& channel,
    const MessageHeader& join,
    Group& group) {
  auto unprepared =
      group.unprepared(static_cast<int>(join.source), channel->registrar());
  if (!unprepared.operations.empty()) {
    // One that asks again, which a peer of ours does not, waits once.
    std::erase_if(waiting_, [&](const Waiting& other) {
      return other.channel == channel && other.join.group == join.group &&
          other.join.source == join.source;
    });
    waiting_.push_back({channel, join, std::move(unprepared)});
    wake_();
    return;
  }
  MessageHeader answer;
  answer.type = MessageType::kJoined;
  answer.group = static_cast<uint32_t>(join.id);
  answer.source = join.tag;
  answer.tag = join.source;
  answer.id = group.id();
  channel->out().sendControl(answer);
  group.linkReady(
      static_cast<int>(join.source), channel, static_cast<uint32_t>(join.id));
}

void GroupRegistry::refuse(
    const std::shared_ptr<PeerChannel>& channel,
    const MessageHeader& join,
    MessageType type,
    AcceptQueue::Refusal why) {
  MessageHeader answer;
  answer.type = type;
  answer.group = static_cast<uint32_t>(join.id);
  answer.source = join.tag;
  answer.tag = static_cast<uint32_t>(why.reason);
  answer.length = why.amount;
  channel->out().sendControl(answer);
}

void GroupRegistry::onAnswer(
    const std::shared_ptr<PeerChannel>& channel,
    const MessageHeader& answer) {
  const auto group = find(answer.group);
  const auto rank = static_cast<int>(answer.source);
  if (group == nullptr && answer.type == MessageType::kJoined) {
    sendLeave(*channel, static_cast<uint32_t>(answer.id), answer.tag, false);
  }
  if (group == nullptr || rank < 0 || rank >= group->size() ||
      group->link(rank).channel != channel) {
    return; // of a group that we have left, or not theirs to say
  }
  auto& link = group->link(rank);
  if (answer.type == MessageType::kJoined) {
    group->linkReady(rank, channel, static_cast<uint32_t>(answer.id));
  } else if (answer.type == MessageType::kTruncated) {
    channel->out().onTruncated(answer);
    onTruncated(*group, answer);
  } else if (answer.type == MessageType::kRefused) {
    failLink(group, rank, refusalOf(answer));
  } else if (group->options().oneLife) {
    failLink(group, rank, closedByOther(*group));
  } else if (answer.type == MessageType::kLeave) {
    link.aborted = answer.tag == 1;
    failLink(
        group,
        rank,
        Status(
            ErrorCode::kPeerFailed,
            "rank " + std::to_string(rank) +
                (link.aborted ? " has aborted its process group, and left"
                              : " has left the group (its process group was "
                                "shut down)")));
  } else if (link.state == State::kJoining) {
    link.state = State::kResolving; // the wire-up reads its record again
    link.channel = nullptr;
  }
}

// The send has ended well: an eager message is the route's from the moment it
// is copied. Nobody may look at its operation any more, so say it in the log.
void GroupRegistry::onTruncated(Group& group, const MessageHeader& notice) {
  constexpr uint64_t kMostLines = 1000; // a peer that lies could fill a disk
  if (++truncated_ > kMostLines) {
    return;
  }
  logError(
      "a send of " + std::to_string(notice.length) + " bytes to " +
      group.nameOf(static_cast<int>(notice.source)) + " " +
      tagName(notice.tag) + " met a receive of only " +
      std::to_string(notice.offset) + " bytes; that receive has failed" +
      (truncated_ == kMostLines ? " (no more of these are logged)" : ""));
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
  for (const auto& group : all()) { // guests are forgotten meanwhile
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
