#pragma once

#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "engine/peer/group.h"
#include "engine/peer/peer_channel.h"

namespace dlslime {

// Which groups this process is in, and the agreement with each peer that both
// mean the same life of the same group (docs/protocol.md, "Joining"). Under
// the engine's lock.
class GroupRegistry final : public ChannelOwner {
 public:
  // `wake` the wire-up thread.
  GroupRegistry(Completions& completions, std::function<void()> wake)
      : completions_(completions), wake_(std::move(wake)) {}

  std::shared_ptr<Group> add(uint64_t epoch, GroupOptions options);
  // Tells the peers that this rank has left, after an abort or in peace; the id
  // is never used again.
  void remove(Group& group, bool aborted = false);
  std::shared_ptr<Group> find(uint32_t id) const;
  size_t size() const {
    return groups_.size();
  }
  std::vector<std::shared_ptr<Group>> all() const;
  const std::map<uint32_t, std::shared_ptr<Group>>& groups() const {
    return groups_;
  }
  // An endpoint has its peer, in another group than this one: nobody is in this
  // one, or can join it.
  void setTaken(Group& group);
  // What groups that it forgets leave behind goes here; set once.
  void leaveStraysTo(StreamGate& strays) {
    strays_ = &strays;
  }
  // Forgets a guest that has gone and that nobody will ask for.
  void forgetIfGone(const std::shared_ptr<Group>& guest);

  // The channel to the operation's peer, if it has one; or null.
  const PeerChannel* channelTo(const Operation& operation);
  // Asks the process behind `channel` whether it is rank `rank` of this group
  // under the id `remoteGroup` that its address record gave.
  void sendJoin(
      Group& group,
      int rank,
      const std::shared_ptr<PeerChannel>& channel,
      uint32_t remoteGroup);

  // Who has asked to join what is not prepared to be joined yet: to be handled
  // again by onMembership() when it is.
  struct Waiting {
    std::shared_ptr<PeerChannel> channel;
    MessageHeader join;
    Unprepared unprepared;
  };
  std::vector<Waiting> takeWaiting() {
    return std::exchange(waiting_, {});
  }
  // What goes by this channel, and lacks preparing by this registrar.
  Unprepared unprepared(const PeerChannel& channel, MemoryRegistrar* registrar);

  Group* groupOf(const PeerChannel& channel, const MessageHeader& header)
      override;
  void onGroupMessage(
      const std::shared_ptr<PeerChannel>& channel,
      const MessageHeader& header) override;
  void sendNote(const Transfer& transfer) override;
  void onChannelFailed(PeerChannel& channel, const Status& why) override;
  void onChannelResumed(PeerChannel& channel) override;

 private:
  void onJoin(
      const std::shared_ptr<PeerChannel>& channel,
      const MessageHeader& join);
  size_t guestsBy(const PeerChannel& channel, const AcceptQueue* hub) const;
  void admit(
      const std::shared_ptr<PeerChannel>& channel,
      const MessageHeader& join,
      const Group& hub);
  void accept(
      const std::shared_ptr<PeerChannel>& channel,
      const MessageHeader& join,
      Group& group);
  static void sendLeave(
      PeerChannel& channel,
      uint32_t remoteGroup,
      uint32_t rank,
      bool aborted);
  static void refuse(
      const std::shared_ptr<PeerChannel>& channel,
      const MessageHeader& join,
      MessageType type,
      AcceptQueue::Refusal why = {});
  void
  failLink(const std::shared_ptr<Group>& group, int rank, const Status& why);
  void onAnswer(
      const std::shared_ptr<PeerChannel>& channel,
      const MessageHeader& answer);
  void onTruncated(Group& group, const MessageHeader& notice);

  Completions& completions_;
  const std::function<void()> wake_;
  StreamGate* strays_ = nullptr;
  std::vector<Waiting> waiting_;
  std::map<uint32_t, std::shared_ptr<Group>> groups_;
  // The group of the last message: most often the next one's, too.
  Group* lastGroup_ = nullptr;
  uint32_t nextId_ = 1;
  uint64_t truncated_ = 0; // sends that were told so after their end
};

} // namespace dlslime
