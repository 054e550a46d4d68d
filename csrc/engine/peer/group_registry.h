#pragma once

#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "engine/peer/joins.h"
#include "engine/progress/engine_mutex.h"

namespace dlslime {

// The groups of this process. Under the engine's lock.
class GroupRegistry final : public ChannelOwner {
 public:
  // `wake` wakes the wire-up thread.
  GroupRegistry(Completions& completions, std::function<void()> wake)
      : completions_(completions),
        wake_(std::move(wake)),
        joins_(*this, wake_) {}

  std::shared_ptr<Group> add(uint64_t epoch, GroupOptions options)
      REQUIRES(kEngineLock);
  // Removes a group and tells the peers that this rank has left, `aborted` or
  // in peace. The id is not used again before ids wrap around.
  void remove(Group& group, bool aborted = false) REQUIRES(kEngineLock);
  std::shared_ptr<Group> find(uint32_t id) const REQUIRES(kEngineLock);
  size_t size() const REQUIRES(kEngineLock) {
    return groups_.size();
  }
  std::vector<std::shared_ptr<Group>> all() const REQUIRES(kEngineLock);
  const std::map<uint32_t, std::shared_ptr<Group>>& groups() const
      REQUIRES(kEngineLock) {
    return groups_;
  }
  // Sets where forgotten groups leave operations that streams may still touch.
  // Called once.
  void leaveStraysTo(StreamGate& strays) REQUIRES(kEngineLock) {
    strays_ = &strays;
  }
  // Forgets the group of a guest that has left, if the owner of the hub will
  // not ask for the group.
  void forgetIfGone(const std::shared_ptr<Group>& guest) REQUIRES(kEngineLock);
  // Fails the link to a rank; may forget the group.
  void failLink(
      const std::shared_ptr<Group>& group,
      int rank,
      const Status& why) REQUIRES(kEngineLock);

  // Returns the channel to the operation's peer, or null.
  PeerChannel* channelTo(const Operation& operation) REQUIRES(kEngineLock);
  // The agreement with peers on groups.
  Joins& joins() REQUIRES(kEngineLock) {
    return joins_;
  }
  // Returns the operations that go by the channel and are not prepared with
  // `registrar`.
  Unprepared unprepared(const PeerChannel& channel, MemoryRegistrar* registrar)
      REQUIRES(kEngineLock);

  Group* groupOf(const PeerChannel& channel, uint32_t group, uint32_t source)
      REQUIRES(kEngineLock) override;
  void onGroupMessage(
      const std::shared_ptr<PeerChannel>& channel,
      const MessageHeader& header) REQUIRES(kEngineLock) override {
    joins_.onMessage(channel, header);
  }
  void sendNote(const Transfer& transfer) REQUIRES(kEngineLock) override;
  void onChannelFailed(PeerChannel& channel, const Status& why)
      REQUIRES(kEngineLock) override;
  void onChannelResumed(PeerChannel& channel) REQUIRES(kEngineLock) override;

 private:
  Completions& completions_;
  const std::function<void()> wake_;
  StreamGate* strays_ = nullptr;
  Joins joins_;
  std::map<uint32_t, std::shared_ptr<Group>> groups_;
  // Group of the last message, and most often of the next message.
  Group* lastGroup_ = nullptr;
  uint32_t nextId_ = 1;
};

} // namespace dlslime
