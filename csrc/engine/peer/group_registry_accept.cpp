// Part of GroupRegistry: groups of guests of a hub, and endpoints that have
// found their peer.
#include <algorithm>

#include "engine/peer/group_registry.h"

namespace dlslime {

using State = Group::LinkState;

namespace {
// Most endpoints of a process at a hub, where a process needs only an endpoint
// or some for each peer.
constexpr size_t kMostOfOneProcess = 4096;
} // namespace

// Returns the number of guests of the hub linked by the channel, accepted or
// not.
size_t GroupRegistry::guestsBy(
    const PeerChannel& channel,
    const AcceptQueue* hub) const {
  const auto count =
      std::count_if(groups_.begin(), groups_.end(), [&](const auto& entry) {
        auto& group = *entry.second;
        return group.options().hub.get() == hub &&
            group.link(1).state == State::kReady &&
            group.link(1).channel.get() == &channel;
      });
  return static_cast<size_t>(count);
}

// Makes a group for a new guest. A guest whose connection breaks before Joined
// arrives joins again as a new guest; the first group has failed by then.
void GroupRegistry::admit(
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
  const auto group = add(hub.epoch(), std::move(options));
  acceptQueue->add(group, channel);
  accept(channel, join, *group);
}

void GroupRegistry::setTaken(Group& group) {
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

} // namespace dlslime
