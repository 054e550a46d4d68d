#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "engine/one_sided/rma_initiator.h"
#include "engine/one_sided/rma_target.h"
#include "engine/peer/best_connection.h"
#include "engine/peer/channel_owner.h"
#include "engine/peer/rejected_route.h"
#include "engine/two_sided/inbound.h"
#include "engine/two_sided/outbound.h"
#include "engine/two_sided/sequencer.h"
#include "interface/transport.h"

namespace dlslime {

// All traffic between this process and a peer by one route policy, shared by
// all groups. Outlives connections: a broken connection is replaced if the
// route can tell what was lost (docs/protocol.md, "Replacing a connection").
// Under the engine's lock.
class PeerChannel final : public ConnectionEvents,
                          public std::enable_shared_from_this<PeerChannel> {
 public:
  enum class State : uint8_t { kConnecting, kOpen, kSevered, kFailed };

  PeerChannel(
      ChannelOwner& owner,
      Completions& completions,
      RegionTable& regions,
      Outbound::Limits limits,
      PeerIdentity peer)
      : owner_(owner),
        completions_(completions),
        regions_(regions),
        limits_(limits),
        peer_(std::move(peer)),
        gpus_(peer_, [this](uint64_t id) { askForShare(id); }) {}

  // `began`: this end has asked for the connection.
  void connected(
      std::unique_ptr<Connection> connection,
      std::vector<RejectedRoute> rejected,
      bool began = true);
  // Sets the socket that this and all later connections are to use.
  void useSocket(int fd) {
    socket_ = fd;
    if (connection_) {
      connection_->useSocket(fd);
    }
  }
  // Replaces the severed connection by the pair's connection number
  // `generation`. The peer has seen every message up to number `peerLast`.
  void resumed(
      std::unique_ptr<Connection> connection,
      std::vector<RejectedRoute> rejected,
      uint32_t generation,
      uint64_t peerLast,
      bool began);
  // Gives the broken connection up because of `why`; operations wait for the
  // replacement. False: the connection can't be replaced.
  bool sever(const Status& why);
  // Gives a working connection up, for a better connection; else as sever().
  bool handOver(const Status& why);
  // True once the severed connection is not needed any more, and can be taken.
  bool hasSevered() const {
    return severed_ != nullptr;
  }
  std::unique_ptr<Connection> takeSevered() {
    return std::move(severed_);
  }
  // Called when a connection taken out of the channel has been destroyed, so
  // that no memory is touched any more.
  void quieted();
  // Returns the `peerLast` that resumed() at the peer takes.
  uint64_t lastSeen() const {
    return sequencer_.last();
  }
  // Number of the present connection in the life of the pair, counted from 1.
  uint32_t generation() const {
    return generation_;
  }
  // Ends all operations with `why`. Receives whose memory may still be written
  // end later: poll until idle(). Idempotent.
  void fail(const Status& why);
  // Fails the channel after a std::bad_alloc that may have left things half
  // done.
  void failForWantOfMemory();
  // Handles the end of the peer's control socket. Messages sent by the peer
  // before the end still count.
  void peerClosed(const Status& why);

  bool poll(int most = kMessagesPerPoll) {
    return pollSafely(most, true);
  }
  // Like poll(), for a channel without work: what waits to be sent is only
  // looked at if the peer has sent something.
  bool glance(int most) {
    return pollSafely(most, false);
  }
  bool endsSoon() const {
    return connection_ && connection_->copying() != nullptr &&
        connection_->copying()->endsSoon();
  }
  bool allSent() {
    return !connection_ || (out_->handedOver() && connection_->allSent());
  }
  // True if the region is lent to the peer.
  bool lends(const Region& region) const {
    return alive() && target_ && target_->lent(region.handle().id) != nullptr;
  }
  bool claimCopy(CopyJob& job);
  void finishCopy(const CopyJob& job);
  // True while claimed copies are being made, and touch memory.
  bool copying() const {
    return copies_ > 0;
  }
  // noteGiven() and noteBack() count the claimed copies in the hands of the
  // Copier.
  void noteGiven();
  void noteBack() {
    --given_;
  }
  // True if the Copier has been busy with the channel for so long that no more
  // threads should be lent to the peer.
  bool copyOverdue() const;
  // True if a part of the channel has the operation.
  bool serves(const Operation& operation) const {
    const auto* const holder = operation.holder;
    return holder != nullptr && out_ &&
        (holder == &*out_ || in_->has(holder) || holder == &*initiator_);
  }

  State state() const {
    return state_;
  }
  bool open() const {
    return state_ == State::kOpen;
  }
  // True if a connection exists or is being replaced.
  bool alive() const {
    return state_ == State::kOpen || state_ == State::kSevered;
  }
  // True if the channel is severed and nothing of the old connection is left.
  bool awaitsConnection() const {
    return state_ == State::kSevered && quiet_;
  }
  bool toItself() const {
    return toItself_;
  }
  // True if the channel has failed and nothing touches memory any more, or only
  // a device that does not report the end: then destroying the connection, and
  // quieted() after it, end the rest.
  bool idle() const;
  // True while something of this end is under way on the channel, so that the
  // channel has to be polled by every look.
  bool working() const;
  const Status& failure() const {
    return failure_;
  }
  const PeerIdentity& peer() const {
    return peer_;
  }
  const std::vector<RejectedRoute>& rejected() const {
    return rejected_;
  }
  // Name of the present or last route; empty before connected().
  const std::string& route() const {
    return route_;
  }
  MemoryRegistrar* registrar() const {
    return connection_ ? connection_->registrar() : nullptr;
  }
  // Of the connection; without one only the name of the copies is left.
  ConnectionInfo info() const {
    return connection_ ? connection_->info() : ConnectionInfo(copyName_);
  }
  void trim() {
    if (connection_) {
      connection_->trim();
    }
    gpus_.trim();
  }
  // Adds the ids of the allocations of our GPUs that the peer may access at any
  // time.
  void addSharedInUse(std::set<uint64_t>& ids);
  // True if the severed connection was given up while working, so that no loss
  // has to be told.
  bool leftWhole() const {
    return leftWhole_;
  }
  // True if the channel is open and handOver() is possible.
  bool replaceable() const {
    return state_ == State::kOpen &&
        connection_->replaceable() != ReplaceAbility::When::kNever;
  }
  // True if a connection was better once, or a better route was tried in vain.
  bool couldBeBetter() const;
  // The four accessors below may be called only after connected().
  Outbound& out() {
    return *out_;
  }
  Inbound& in() {
    return *in_;
  }
  RmaInitiator& initiator() {
    return *initiator_;
  }
  RmaTarget& target() {
    return *target_;
  }
  // Goes on after the channel's registrar has registered a region, or has
  // failed to.
  void onRegistered(const RegionPtr& region, const Status& status);
  // Takes out the connection of a failed channel that is polled no more, for
  // close() outside of the lock.
  std::unique_ptr<Connection> takeConnection();

  void onMessage(const MessageHeader& header, ByteSpan payload) override;
  Placement placementOf(const MessageHeader& header, ByteSpan begin) override;
  void onPlaced(const MessageHeader& header, Fault fault) override;
  void onPulled(uint64_t pullId, const Status& status) override;
  void onPartlyPulled(uint64_t pullId, size_t arrived) override {
    in_->rendezvous().onPartlyPulled(pullId, arrived);
  }
  void onPushed(uint64_t pushId, const Status& status) override;
  void onLanded(uint64_t offerId, uint16_t sequenceBits, size_t length)
      override;
  void onParted() override;
  void onTransferred(uint64_t id, const Status& status) override;

 private:
  std::string connectionText() const;
  bool replace(const Status& why, ReplaceAbility::When least);
  void sayReplaced(const std::string& what) const;
  void use(
      std::unique_ptr<Connection> connection,
      std::vector<RejectedRoute> rejected,
      bool began);
  bool pollSafely(int most, bool flushes);
  bool pollOnce(int most, bool flushes);
  bool flush();
  void detachIfDrained();
  void refuse(const MessageHeader& header);
  void limitAnswers();
  void askForShare(uint64_t id);
  void inOrder(const MessageHeader& header, ByteSpan payload);
  // Handles some of the messages kept until their turn: a peer may have sent
  // many thousands. True: more may be left.
  bool handleKept();
  void dispatch(const MessageHeader& header, ByteSpan payload);
  void handle(const MessageHeader& header, ByteSpan payload);
  void toOutbound(const MessageHeader& header);
  void toInbound(const MessageHeader& header, ByteSpan payload);
  void toInitiator(const MessageHeader& header, ByteSpan payload);
  void toTarget(const MessageHeader& header, ByteSpan payload);
  void toGpus(const MessageHeader& header, ByteSpan payload);
  void onEager(const MessageHeader& header, ByteSpan payload);
  void onRts(const wire::Rts& rts);
  void onPushedMessage(const MessageHeader& header);
  template <typename Message>
  ReceivingGroup* groupOf(const Message& message) {
    return owner_.groupOf(*this, message.group, message.source);
  }

  ChannelOwner& owner_;
  Completions& completions_;
  RegionTable& regions_;
  const Outbound::Limits limits_;
  const PeerIdentity peer_;
  State state_ = State::kConnecting;
  bool toItself_ = false;
  Status failure_; // or why the channel is severed
  TimePoint detachAt_{}; // severed: end of waiting for drained()
  TimePoint giveUpAt_ = never(); // failed: when idle() waits no longer
  uint32_t generation_ = 1;
  uint32_t replacements_ = 0; // begun so far
  bool quiet_ = true; // false: a severed connection may touch memory
  std::unique_ptr<Connection> severed_;
  Status peerClosed_; // set by peerClosed() until the route is drained
  std::vector<RejectedRoute> rejected_;
  std::unique_ptr<Connection> connection_;
  int socket_ = -1;
  int firstToFlush_ = 0; // the part that comes first in the next flush()
  std::string route_;
  BestConnection best_;
  bool leftWhole_ = false;
  std::string_view copyName_; // of the last connection, once gone
  int copies_ = 0; // claimed and not finished: they use the connection
  int given_ = 0; // claimed copies in the hands of the Copier
  TimePoint givenAt_{}; // when given_ was last raised from 0
  PeerGpus gpus_;
  std::optional<Outbound> out_;
  std::optional<Inbound> in_;
  std::optional<RmaInitiator> initiator_;
  std::optional<RmaTarget> target_;
  Sequencer sequencer_;
};

} // namespace dlslime
