#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/threads/mutex.h"
#include "engine/wire/group_messages.h"

namespace dlslime {

class Group;
class PeerChannel;

// Groups of a hub's guests while the owner of the hub does not hold them: not
// accepted yet, or dropped after being accepted. Any thread.
class AcceptQueue {
 public:
  // Refuses new guests while departed guests have left more than `mostUnread`
  // unread bytes, until accept().
  explicit AcceptQueue(uint64_t mostUnread) : mostUnread_(mostUnread) {}

  struct Refusal {
    wire::RefusalReason reason{};
    uint64_t amount = 0; // guests or bytes
  };
  // Returns why the process behind `from` can't join now; nothing if the
  // process can join.
  std::optional<Refusal> refusal(const PeerChannel& from) const;
  void add(
      std::shared_ptr<Group> group,
      const std::shared_ptr<PeerChannel>& from);
  // Takes out the groups not accepted yet, in the order of joining.
  std::vector<std::shared_ptr<Group>> accept();
  // Keeps an accepted group, dropped by the owner, until the guest leaves.
  // False: the hub is closed.
  bool keep(std::shared_ptr<Group> group);
  // Closes the hub and takes out all groups, for the caller to leave.
  std::vector<std::shared_ptr<Group>> close();
  // Notes that a guest has left, with so many bytes not received. True: the
  // group has to be forgotten, because the owner will not ask for the group.
  bool onGone(uint32_t id, uint64_t unreadBytes);

 private:
  struct Entry {
    std::shared_ptr<Group> group;
    bool accepted = false;
    std::weak_ptr<PeerChannel> from; // only compared
    // Bytes not received, once the guest has left.
    uint64_t unreadBytes = 0;
  };
  // Most guests not yet accepted: a process that knows the address may join any
  // number of times.
  static constexpr size_t kMostWaiting = 4096;
  static constexpr size_t kMostWaitingOfOne = 1024; // of a single process

  const uint64_t mostUnread_;
  mutable Mutex mutex_;
  // By group id, mostly in joining order.
  std::map<uint32_t, Entry> entries_ GUARDED_BY(mutex_);
  size_t waiting_ GUARDED_BY(mutex_) = 0; // entries not accepted yet
  uint64_t unread_ GUARDED_BY(mutex_) = 0; // sum of unreadBytes
  bool closed_ GUARDED_BY(mutex_) = false;
};

} // namespace dlslime
