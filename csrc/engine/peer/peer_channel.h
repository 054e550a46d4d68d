#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "engine/one_sided/rma_initiator.h"
#include "engine/one_sided/rma_target.h"
#include "engine/two_sided/inbound.h"
#include "engine/two_sided/outbound.h"
#include "engine/two_sided/sequencer.h"
#include "interface/transport.h"

namespace dlslime {

class PeerChannel;

// What a channel asks of, and tells, the process it belongs to. Under the
// engine's lock.
class ChannelOwner {
 public:
  virtual ~ChannelOwner() = default;
  // The group that `header` addresses, if this channel's process has joined
  // it as rank header.source; null if it is unknown, closed, or not theirs.
  virtual ReceivingGroup* groupOf(
      const PeerChannel& channel,
      const MessageHeader& header) = 0;
  // kJoin, kJoined, kStale, kLeave, kRefused, kTruncated.
  virtual void onGroupMessage(
      const std::shared_ptr<PeerChannel>& channel,
      const MessageHeader& header) = 0;
  // The bytes of the transfer are there, and its note is to follow.
  virtual void sendNote(const Transfer& transfer) = 0;
  virtual void onChannelFailed(PeerChannel& channel, const Status& why) = 0;
  // Another connection has taken the place of one that broke.
  virtual void onChannelResumed(PeerChannel& channel) = 0;
};

// Why a route that stands before the chosen one was not taken.
struct RejectedRoute {
  std::string route, reason;
  bool tried = false; // here: it might work another time
};

// All that goes on between this process and one other by one route policy:
// every group of the two shares it. It outlives its connection: one that breaks
// is replaced, where its route can tell what was lost (docs/protocol.md,
// "Replacing a connection"). Under the engine's lock.
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

  // `began`: this end has asked for the connection. It alone goes by what is
  // best for itself: what is good for one may not be for the other.
  void connected(
      std::unique_ptr<Connection> connection,
      std::vector<RejectedRoute> rejected,
      bool began = true);
  // Of connections to come, too. See Connection::useSocket().
  void useSocket(int fd) {
    socket_ = fd;
    if (connection_) {
      connection_->useSocket(fd);
    }
  }
  // The `generation`-th connection takes the place of a severed one: the peer
  // has seen every message up to number `peerLast`.
  void resumed(
      std::unique_ptr<Connection> connection,
      std::vector<RejectedRoute> rejected,
      uint32_t generation,
      uint64_t peerLast,
      bool began);
  // Gives the broken connection up because of `why`: what goes on waits for
  // another one. False: this route's can't be replaced.
  bool sever(const Status& why);
  // The same with a connection that works, for a better one.
  bool handOver(const Status& why);
  // The connection of the severed channel, once it is not needed any more.
  bool hasSevered() const {
    return severed_ != nullptr;
  }
  std::unique_ptr<Connection> takeSevered() {
    return std::move(severed_);
  }
  // It has been destroyed.
  void quieted();
  // What resumed() takes, for the peer.
  uint64_t lastSeen() const {
    return sequencer_.last();
  }
  // Which connection of the pair this is, counted from 1.
  uint32_t generation() const {
    return generation_;
  }
  // Ends everything with `why`. Receives whose memory may still be written
  // end when it is quiet: keep polling until idle(). Idempotent.
  void fail(const Status& why);
  // After an exception that may have left things half done.
  void failForWantOfMemory();
  // The peer's process has closed its end: what it sent before still counts.
  void peerClosed(const Status& why);

  bool poll(int most = kMessagesPerPoll);
  bool endsSoon() const {
    return connection_ && connection_->endsSoon();
  }
  bool allSent() {
    return !connection_ || (out_->handedOver() && connection_->allSent());
  }
  // The peer has been given this one, and has not given it back.
  bool lends(const Region& region) const {
    return alive() && target_ && target_->lent(region.handle().id) != nullptr;
  }
  bool claimCopy(CopyJob& job);
  void finishCopy(const CopyJob& job);
  // Some are being made, and touch memory.
  bool copying() const {
    return copies_ > 0;
  }
  // One of them is made by the Copier, from now on or no longer.
  void noteGiven();
  void noteBack() {
    --given_;
  }
  // One of those has been under way for so long that no other thread should be
  // lent to this peer.
  bool copyOverdue() const;
  // One of its halves has this operation.
  bool serves(const Operation& operation) const {
    const void* const half = operation.holder;
    return half != nullptr && out_ &&
        (half == &*out_ || half == &*in_ || half == &*initiator_);
  }

  State state() const {
    return state_;
  }
  bool open() const {
    return state_ == State::kOpen;
  }
  // It has a connection, or will have one again.
  bool alive() const {
    return state_ == State::kOpen || state_ == State::kSevered;
  }
  // Severed, and nothing of the old connection is left.
  bool awaitsConnection() const {
    return state_ == State::kSevered && quiet_;
  }
  bool toItself() const {
    return toItself_;
  }
  // Failed, and nothing touches memory any more; or only a device does, which
  // does not tell of it: then the end of the connection, and quieted() after
  // it, end the rest.
  bool idle() const;
  const Status& failure() const {
    return failure_;
  }
  const PeerIdentity& peer() const {
    return peer_;
  }
  const std::vector<RejectedRoute>& rejected() const {
    return rejected_;
  }
  // How it is, or was, reached; empty before connected().
  const std::string& route() const {
    return route_;
  }
  MemoryRegistrar* registrar() const {
    return connection_ ? connection_->registrar() : nullptr;
  }
  // Connection::peerPid().
  uint32_t peerPid() const {
    return connection_ ? connection_->peerPid() : 0;
  }
  MemoryUse memoryUse() const {
    return connection_ ? connection_->memoryUse() : MemoryUse{};
  }
  void trim() {
    if (connection_) {
      connection_->trim();
    }
    gpus_.trim();
  }
  // Adds the ids of those allocations of our GPUs that the peer may get at any
  // time.
  void addSharedInUse(std::set<uint64_t>& ids);
  std::string copyName() const;
  std::string devices() const {
    return connection_ ? connection_->describe() : "";
  }
  size_t merit() const {
    return connection_ ? connection_->merit() : 0;
  }
  // It was given up while it worked: nobody has to be told of a loss.
  bool leftWhole() const {
    return leftWhole_;
  }
  // It is open, and handOver() is possible.
  bool replaceable() const {
    return state_ == State::kOpen &&
        connection_->replaceable() != Connection::Replaceable::kNever;
  }
  // It was better once, or a better route was tried in vain.
  bool couldBeBetter() const;
  // Only after connected().
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
  // Memory was enrolled with the registrar of this channel, or can't be.
  void onRegistered(const RegionPtr& region, const Status& status);
  // For close() outside of the lock, when nothing polls any more.
  std::unique_ptr<Connection> takeConnection();

  void onMessage(const MessageHeader& header, ByteSpan payload) override;
  Placement placementOf(const MessageHeader& header, ByteSpan begin) override;
  void onPlaced(const MessageHeader& header, Fault fault) override;
  void onPulled(uint64_t pullId, const Status& status) override;
  void onPartlyPulled(uint64_t pullId, size_t arrived) override {
    in_->onPartlyPulled(pullId, arrived);
  }
  void onPushed(uint64_t pushId, const Status& status) override;
  void onLanded(uint64_t offerId, uint16_t sequenceBits, size_t length)
      override;
  void onParted() override;
  void onTransferred(uint64_t id, const Status& status) override;

 private:
  Status lost(const Status& broken) const;
  bool replace(const Status& why, Connection::Replaceable least);
  void sayReplaced(const std::string& what) const;
  void use(
      std::unique_ptr<Connection> connection,
      std::vector<RejectedRoute> rejected,
      bool began);
  bool pollOnce(int most);
  bool flush();
  void detachIfDrained();
  void refuse(const MessageHeader& header);
  void limitAnswers();
  void askForShare(uint64_t id);
  void inOrder(const MessageHeader& header, ByteSpan payload);
  // Those that came before their turn, a few at a time: a peer may have sent
  // many thousands. True: there may be more.
  bool handleKept();
  void dispatch(const MessageHeader& header, ByteSpan payload);
  void handle(const MessageHeader& header, ByteSpan payload);
  void toGroup(const MessageHeader& header, ByteSpan payload);
  void toOutbound(const MessageHeader& header);
  void toTransfers(const MessageHeader& header, ByteSpan payload);
  void toLender(bool known, const MessageHeader& header, ByteSpan payload);

  ChannelOwner& owner_;
  Completions& completions_;
  RegionTable& regions_;
  const Outbound::Limits limits_;
  const PeerIdentity peer_;
  State state_ = State::kConnecting;
  bool toItself_ = false;
  Status failure_; // or why it is severed
  TimePoint detachAt_{}; // severed: whatever the connection says
  TimePoint giveUpAt_ = never(); // failed: the same
  uint32_t generation_ = 1;
  uint32_t replacements_ = 0; // that have begun
  bool quiet_ = true; // no memory is touched for a severed connection
  std::unique_ptr<Connection> severed_;
  Status peerClosed_; // set by peerClosed() until the route is drained
  std::vector<RejectedRoute> rejected_;
  std::unique_ptr<Connection> connection_;
  int socket_ = -1;
  int firstToFlush_ = 0; // of the halves that send
  std::string route_;
  // By route: of all connections so far, and of those since the last one that
  // the other end began.
  std::map<std::string, size_t> mostLanes_, mostMerit_;
  bool leftWhole_ = false;
  std::string copyName_; // once the connection is gone
  int copies_ = 0; // claimed and not finished: they use the connection
  int given_ = 0; // of them to the Copier,
  TimePoint givenAt_{}; // the last one when there were none
  PeerGpus gpus_;
  std::optional<Outbound> out_;
  std::optional<Inbound> in_;
  std::optional<RmaInitiator> initiator_;
  std::optional<RmaTarget> target_;
  Sequencer sequencer_;
};

} // namespace dlslime
