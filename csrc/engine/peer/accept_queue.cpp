#include "engine/peer/accept_queue.h"

#include <algorithm>
#include <utility>

#include "engine/peer/group.h"

namespace dlslime {

std::optional<AcceptQueue::Refusal> AcceptQueue::refusal(
    const PeerChannel& from) const {
  const MutexLock lock(mutex_);
  // Counts entries only where the limit may be reached, because every join
  // comes to refusal().
  const auto ofOne = waiting_ < kMostWaitingOfOne
      ? waiting_
      : static_cast<size_t>(std::count_if(
            entries_.begin(), entries_.end(), [&](const auto& entry) {
              return !entry.second.accepted &&
                  entry.second.from.lock().get() == &from;
            }));
  if (waiting_ >= kMostWaiting || ofOne >= kMostWaitingOfOne) {
    return Refusal{
        wire::RefusalReason::kTooManyGuests,
        waiting_ >= kMostWaiting ? waiting_ : ofOne};
  }
  if (unread_ > mostUnread_) {
    return Refusal{wire::RefusalReason::kTooMuchUnread, unread_};
  }
  return std::nullopt;
}

void AcceptQueue::add(
    std::shared_ptr<Group> group,
    const std::shared_ptr<PeerChannel>& from) {
  const MutexLock lock(mutex_);
  const auto id = group->id();
  entries_.emplace(id, Entry{std::move(group), false, from});
  ++waiting_;
}

std::vector<std::shared_ptr<Group>> AcceptQueue::accept() {
  const MutexLock lock(mutex_);
  std::vector<std::shared_ptr<Group>> taken;
  std::erase_if(entries_, [&](auto& entry) {
    if (entry.second.accepted) {
      return false;
    }
    taken.push_back(std::move(entry.second.group));
    return true;
  });
  waiting_ = 0;
  unread_ = 0;
  return taken;
}

bool AcceptQueue::keep(std::shared_ptr<Group> group) {
  const MutexLock lock(mutex_);
  if (closed_) {
    return false;
  }
  const auto id = group->id();
  entries_.emplace(id, Entry{std::move(group), true, {}});
  return true;
}

std::vector<std::shared_ptr<Group>> AcceptQueue::close() {
  const MutexLock lock(mutex_);
  closed_ = true;
  std::vector<std::shared_ptr<Group>> taken;
  for (auto& [id, guest] : std::exchange(entries_, {})) {
    taken.push_back(std::move(guest.group));
  }
  waiting_ = 0;
  unread_ = 0;
  return taken;
}

bool AcceptQueue::onGone(uint32_t id, uint64_t unreadBytes) {
  const MutexLock lock(mutex_);
  const auto found = entries_.find(id);
  if (found == entries_.end()) {
    return false; // held by the owner, or already forgotten
  }
  auto& guest = found->second;
  if (!guest.accepted && unreadBytes > 0) {
    unread_ += unreadBytes - std::exchange(guest.unreadBytes, unreadBytes);
    return false;
  }
  waiting_ -= guest.accepted ? 0 : 1;
  entries_.erase(found);
  return true;
}

} // namespace dlslime
