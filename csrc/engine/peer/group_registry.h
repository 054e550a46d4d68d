#pragma once

#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "engine/peer/group.h"
#include "engine/peer/peer_channel.h"

namespace dlslime {

// The groups of this process. Agrees with each peer on the group and the
// incarnation (docs/protocol.md, "Joining"). Under the engine's lock.
class GroupRegistry final : public ChannelOwner {
 public:
  // `wake` wakes the wire-up thread.
  GroupRegistry(Completions& completions, std::function<void()> wake)
      : completions_(completions), wake_(std::move(wake)) {}

  std::shared_ptr<Group> add(uint64_t epoch, GroupOptions options);
  // Removes a group and tells the peers that this rank has left, `aborted` or
  // in peace. The id is not used again before ids wrap around.
  void remove(Group& group, bool aborted = false);
  std::shared_ptr<Group> find(uint32_t id) const;
  size_t size() const {
    return groups_.size();
  }
  std::vector<std::shared_ptr<Group>> all() const;
  const std::map<uint32_t, std::shared_ptr<Group>>& groups() const {
    return groups_;
  }
  // Refuses all present and future members of the group, because the endpoint
  // has the peer in a second group.
  void setTaken(Group& group);
  // Sets where forgotten groups leave operations that streams may still touch.
  // Called once.
  void leaveStraysTo(StreamGate& strays) {
    strays_ = &strays;
  }
  // Forgets the group of a guest that has left, if the owner of the hub will
  // not ask for the group.
  void forgetIfGone(const std::shared_ptr<Group>& guest);

  // Returns the channel to the operation's peer, or null.
  PeerChannel* channelTo(const Operation& operation);
  // Asks the process behind `channel` to confirm that it is rank `rank` of the
  // group. `remoteGroup` is the group's id in the rank's address record.
  void sendJoin(
      Group& group,
      int rank,
      const std::shared_ptr<PeerChannel>& channel,
      uint32_t remoteGroup);

  // Join of a group with memory not prepared yet. The caller prepares the
  // memory and calls onJoin() again.
  struct Waiting {
    std::shared_ptr<PeerChannel> channel;
    wire::Join join;
    Unprepared unprepared;
  };
  std::vector<Waiting> takeWaiting() {
    return std::exchange(waiting_, {});
  }
  // Returns the operations that go by the channel and are not prepared with
  // `registrar`.
  Unprepared unprepared(const PeerChannel& channel, MemoryRegistrar* registrar);

  void onJoin(
      const std::shared_ptr<PeerChannel>& channel,
      const wire::Join& join);
  Group* groupOf(const PeerChannel& channel, uint32_t group, uint32_t source)
      override;
  void onGroupMessage(
      const std::shared_ptr<PeerChannel>& channel,
      const MessageHeader& header) override;
  void sendNote(const Transfer& transfer) override;
  void onChannelFailed(PeerChannel& channel, const Status& why) override;
  void onChannelResumed(PeerChannel& channel) override;

 private:
  size_t guestsBy(const PeerChannel& channel, const AcceptQueue* hub) const;
  void admit(
      const std::shared_ptr<PeerChannel>& channel,
      const wire::Join& join,
      const Group& hub);
  void accept(
      const std::shared_ptr<PeerChannel>& channel,
      const wire::Join& join,
      Group& group);
  static void sendLeave(
      PeerChannel& channel,
      uint32_t remoteGroup,
      uint32_t rank,
      bool aborted);
  static void refuse(
      PeerChannel& channel,
      const wire::Join& join,
      const AcceptQueue::Refusal& why);
  static void sayStale(PeerChannel& channel, const wire::Join& join);
  void
  failLink(const std::shared_ptr<Group>& group, int rank, const Status& why);
  // Returns the group that a peer's answer is about; null if this process has
  // left the group, or if the rank is not linked by the channel.
  std::shared_ptr<Group>
  asked(const PeerChannel& channel, uint32_t group, uint32_t source) const;
  void onJoined(
      const std::shared_ptr<PeerChannel>& channel,
      const wire::Joined& joined);
  void onStale(const PeerChannel& channel, const wire::Stale& stale);
  void onLeave(const PeerChannel& channel, const wire::Leave& leave);
  void onRefused(const PeerChannel& channel, const wire::Refused& refused);

  Completions& completions_;
  const std::function<void()> wake_;
  StreamGate* strays_ = nullptr;
  std::vector<Waiting> waiting_;
  std::map<uint32_t, std::shared_ptr<Group>> groups_;
  // Group of the last message, and most often of the next message.
  Group* lastGroup_ = nullptr;
  uint32_t nextId_ = 1;
};

} // namespace dlslime
