#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "engine/channel/peer_channel.h"
#include "engine/peer/group.h"
#include "engine/progress/engine_mutex.h"

namespace dlslime {

class GroupRegistry;

// Agrees with each peer on the group and the incarnation (docs/protocol.md,
// "Joining"). Under the engine's lock.
class Joins {
 public:
  // `wake` wakes the wire-up thread.
  Joins(GroupRegistry& groups, std::function<void()> wake)
      : groups_(groups), wake_(std::move(wake)) {}

  // Asks the process behind `channel` to confirm that it is rank `rank` of the
  // group. `remoteGroup` is the group's id in the rank's address record.
  static void send(
      Group& group,
      int rank,
      const std::shared_ptr<PeerChannel>& channel,
      uint32_t remoteGroup) REQUIRES(kEngineLock);
  // Tells the peers that this rank leaves, `aborted` or in peace.
  static void leave(Group& group, bool aborted) REQUIRES(kEngineLock);
  // Refuses all present and future members of the group, because the endpoint
  // has the peer in a second group.
  static void setTaken(Group& group) REQUIRES(kEngineLock);

  // Join of a group with memory not prepared yet. The caller prepares the
  // memory and calls onJoin() again.
  struct Waiting {
    std::shared_ptr<PeerChannel> channel;
    wire::Join join;
    Unprepared unprepared;
  };
  std::vector<Waiting> takeWaiting() REQUIRES(kEngineLock) {
    return std::exchange(waiting_, {});
  }
  void onJoin(
      const std::shared_ptr<PeerChannel>& channel,
      const wire::Join& join) REQUIRES(kEngineLock);
  // Handles a Join, or one of the answers.
  void onMessage(
      const std::shared_ptr<PeerChannel>& channel,
      const MessageHeader& header) REQUIRES(kEngineLock);

 private:
  size_t guestsBy(const PeerChannel& channel, const AcceptQueue* hub) const
      REQUIRES(kEngineLock);
  void admit(
      const std::shared_ptr<PeerChannel>& channel,
      const wire::Join& join,
      const Group& hub) REQUIRES(kEngineLock);
  void accept(
      const std::shared_ptr<PeerChannel>& channel,
      const wire::Join& join,
      Group& group) REQUIRES(kEngineLock);
  // Returns the group that a peer's answer is about; null if this process has
  // left the group, or if the rank is not linked by the channel.
  std::shared_ptr<Group> asked(
      const PeerChannel& channel,
      uint32_t group,
      uint32_t source) const REQUIRES(kEngineLock);
  void onJoined(
      const std::shared_ptr<PeerChannel>& channel,
      const wire::Joined& joined) REQUIRES(kEngineLock);
  void onStale(const PeerChannel& channel, const wire::Stale& stale)
      REQUIRES(kEngineLock);
  void onLeave(const PeerChannel& channel, const wire::Leave& leave)
      REQUIRES(kEngineLock);
  void onRefused(const PeerChannel& channel, const wire::Refused& refused)
      REQUIRES(kEngineLock);

  GroupRegistry& groups_;
  const std::function<void()> wake_;
  std::vector<Waiting> waiting_;
};

} // namespace dlslime
