// The groups of those that join a hub, and endpoints that have their peer.
#include <algorithm>

#include "engine/peer/group_registry.h"

namespace dlslime {

using State = Group::LinkState;

namespace {
// A process has an endpoint, or some, for each peer that it talks to.
constexpr size_t kMostOfOneProcess = 4096;
} // namespace

// Those of a hub that are there, by this connection: accepted or not.
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

// A guest whose connection breaks before it knows comes again, as a new one:
// the group that it had here has failed by then.
void GroupRegistry::admit(
    const std::shared_ptr<PeerChannel>& channel,
    const MessageHeader& join,
    const Group& hub) {
  const auto& acceptQueue = hub.options().acceptQueue;
  if (join.source == static_cast<uint32_t>(hub.rank())) {
    refuse(channel, join, MessageType::kStale);
    return;
  }
  if (const auto why = acceptQueue->refusal(*channel)) {
    refuse(channel, join, MessageType::kRefused, *why);
    return;
  }
  const auto there = groups_.size() < kMostOfOneProcess
      ? 0
      : guestsBy(*channel, acceptQueue.get());
  if (there >= kMostOfOneProcess) {
    refuse(
        channel,
        join,
        MessageType::kRefused,
        {RefusalReason::kTooManyOfOne, there});
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
    MessageHeader join; // as it was
    join.id = link.remoteGroup;
    join.tag = static_cast<uint32_t>(group.rank());
    refuse(
        link.channel, join, MessageType::kRefused, {RefusalReason::kTaken, 0});
    group.failLink(rank, {ErrorCode::kCancelled, "it is not the peer"});
  }
}

// What it has left behind, and nobody will read, counts for its sender again.
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
