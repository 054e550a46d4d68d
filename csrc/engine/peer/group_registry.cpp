#include "engine/peer/group_registry.h"

#include <algorithm>
#include <iterator>

namespace dlslime {

using State = Group::LinkState;

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
  Joins::leave(group, aborted);
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

void GroupRegistry::failLink(
    const std::shared_ptr<Group>& group,
    int rank,
    const Status& why) {
  group->failLink(rank, why);
  forgetIfGone(group);
}

// Closing the group returns credit for unread messages to the sender.
void GroupRegistry::forgetIfGone(const std::shared_ptr<Group>& guest) {
  const auto& hub = guest->options().hub;
  if (hub == nullptr || guest->link(1).state != State::kFailed ||
      !hub->onGone(guest->id(), guest->matcher().unreadBytes())) {
    return;
  }
  guest->close(guest->link(1).failure);
  if (strays_ != nullptr) {
    guest->leaveHeldTo(*strays_);
  }
  lastGroup_ = nullptr;
  groups_.erase(guest->id());
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
        auto found = findUnprepared(*group, rank, registrar).operations;
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
        group->links().use(link, channel.connection().registrar());
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
