#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "interface/message.h"

namespace dlslime {

class Group;
class PeerChannel;

// The groups of a hub's guests that its owner does not hold:
// it has not accepted them yet, or has dropped them again. Any thread.
class AcceptQueue {
 public:
  // Messages that guests have left behind unread are kept up to `mostUnread`
  // bytes; nobody else may come before they are read.
  explicit AcceptQueue(uint64_t mostUnread) : mostUnread_(mostUnread) {}

  struct Refusal {
    RefusalReason reason{};
    uint64_t amount = 0; // guests or bytes
  };
  // Why no guest can come now from the process behind this channel.
  std::optional<Refusal> refusal(const PeerChannel& from) const;
  void add(
      std::shared_ptr<Group> group,
      const std::shared_ptr<PeerChannel>& from);
  // Those that have not been accepted, in the order in which they came.
  std::vector<std::shared_ptr<Group>> accept();
  // The owner has dropped one that it had accepted: it stays until it leaves.
  // False: the hub is closed.
  bool keep(std::shared_ptr<Group> group);
  // The hub is closed: all of them, to leave.
  std::vector<std::shared_ptr<Group>> close();
  // The guest has left, and so many bytes that nobody has read. True: it is
  // forgotten, since nobody will ask for it.
  bool onGone(uint32_t id, uint64_t unreadBytes);

 private:
  struct Entry {
    std::shared_ptr<Group> group;
    bool accepted = false;
    std::weak_ptr<PeerChannel> from; // for comparison
    uint64_t unreadBytes = 0; // once it has left
  };
  // A process that knows the address may come as often as it likes.
  static constexpr size_t kMostWaiting = 4096;
  static constexpr size_t kMostWaitingOfOne = 1024; // process

  const uint64_t mostUnread_;
  mutable std::mutex mutex_;
  // Guarded by mutex_:
  std::map<uint32_t, Entry> entries_; // by the group's id, which only grows
  size_t waiting_ = 0; // of them not accepted
  uint64_t unread_ = 0; // bytes of all
  bool closed_ = false;
};

} // namespace dlslime
