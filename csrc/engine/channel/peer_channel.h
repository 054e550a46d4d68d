#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "engine/channel/channel_connection.h"
#include "engine/channel/channel_owner.h"
#include "engine/channel/channel_parts.h"
#include "engine/channel/incoming_messages.h"
#include "engine/channel/lent_copies.h"
#include "engine/progress/engine_mutex.h"
#include "interface/transport.h"

namespace dlslime {

// All traffic between this process and a peer by one route policy, shared by
// all groups. Outlives connections: a broken connection is replaced if the
// route can tell what was lost (docs/protocol.md, "Replacing a connection").
// Under the engine's lock.
class PeerChannel final : public std::enable_shared_from_this<PeerChannel> {
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
        gpus_(peer_, [this](uint64_t id, bool handOver) REQUIRES(kEngineLock) {
          parts_->out.sendControl(wire::Reshare{id, handOver});
        }) {}

  // `began`: this end has asked for the connection.
  void connected(
      std::unique_ptr<Connection> connection,
      std::vector<RejectedRoute> rejected,
      bool began = true) REQUIRES(kEngineLock);
  // Replaces the severed connection by the pair's connection number
  // `generation`. The peer has seen every message up to number `peerLast`.
  void resumed(
      std::unique_ptr<Connection> connection,
      std::vector<RejectedRoute> rejected,
      uint32_t generation,
      uint64_t peerLast,
      bool began) REQUIRES(kEngineLock);
  // Gives the broken connection up because of `why`; operations wait for the
  // replacement. False: the connection can't be replaced.
  bool sever(const Status& why) REQUIRES(kEngineLock);
  // Gives a working connection up, for a better connection; else as sever().
  bool handOver(const Status& why) REQUIRES(kEngineLock);
  // Called when a connection taken out of the channel has been destroyed, so
  // that no memory is touched any more.
  void quieted() REQUIRES(kEngineLock);
  // Returns the `peerLast` that resumed() at the peer takes.
  uint64_t lastSeen() const REQUIRES(kEngineLock) {
    return incoming_.sequencer().last();
  }
  // Ends all operations with `why`. Receives whose memory may still be written
  // end later: poll until idle(). Idempotent.
  void fail(const Status& why) REQUIRES(kEngineLock);
  // Fails the channel after a std::bad_alloc that may have left things half
  // done.
  void failForWantOfMemory() REQUIRES(kEngineLock);
  // Handles the end of the peer's control socket. Messages sent by the peer
  // before the end still count.
  void peerClosed(const Status& why) REQUIRES(kEngineLock);

  bool poll(int most = kMessagesPerPoll) REQUIRES(kEngineLock) {
    return pollSafely(most, true);
  }
  // Like poll(), for a channel without work: what waits to be sent is only
  // looked at if the peer has sent something.
  bool glance(int most) REQUIRES(kEngineLock) {
    return pollSafely(most, false);
  }
  bool allSent() REQUIRES(kEngineLock) {
    return !connection_ || (parts_->out.handedOver() && connection_->allSent());
  }
  bool claimCopy(CopyJob& job) REQUIRES(kEngineLock);
  void finishCopy(const CopyJob& job) REQUIRES(kEngineLock);
  // The copies claimed and not finished.
  LentCopies& copies() REQUIRES(kEngineLock) {
    return copies_;
  }

  State state() const REQUIRES(kEngineLock) {
    return state_;
  }
  bool open() const REQUIRES(kEngineLock) {
    return state_ == State::kOpen;
  }
  // True if a connection exists or is being replaced.
  bool alive() const REQUIRES(kEngineLock) {
    return state_ == State::kOpen || state_ == State::kSevered;
  }
  // True if the channel is severed and nothing of the old connection is left.
  bool awaitsConnection() const REQUIRES(kEngineLock) {
    return state_ == State::kSevered && connection_.quiet();
  }
  bool toItself() const REQUIRES(kEngineLock) {
    return connection_.route() == "self";
  }
  // True if the channel has failed and nothing touches memory any more, or only
  // a device that does not report the end: then destroying the connection, and
  // quieted() after it, end the rest.
  bool idle() const REQUIRES(kEngineLock);
  // True while something of this end is under way on the channel, so that the
  // channel has to be polled by every look.
  bool working() const REQUIRES(kEngineLock);
  const Status& failure() const REQUIRES(kEngineLock) {
    return failure_;
  }
  const PeerIdentity& peer() const {
    return peer_;
  }
  // The present and earlier connections.
  const ChannelConnection& connection() const REQUIRES(kEngineLock) {
    return connection_;
  }
  ChannelConnection& connection() REQUIRES(kEngineLock) {
    return connection_;
  }
  void trim() REQUIRES(kEngineLock) {
    if (connection_) {
      connection_->trim();
    }
    gpus_.trim();
  }
  // True if the channel is open and handOver() is possible.
  bool replaceable() const REQUIRES(kEngineLock) {
    return state_ == State::kOpen &&
        connection_->replaceable() != ReplaceAbility::When::kNever;
  }
  // Both halves of the protocols; null before connected().
  ChannelParts* parts() REQUIRES(kEngineLock) {
    return parts_ ? &*parts_ : nullptr;
  }
  const ChannelParts* parts() const REQUIRES(kEngineLock) {
    return parts_ ? &*parts_ : nullptr;
  }
  PeerGpus& gpus() REQUIRES(kEngineLock) {
    return gpus_;
  }
  // What the connection tells the channel.
  ConnectionEvents& events() REQUIRES(kEngineLock) {
    return incoming_;
  }
  // Goes on after the channel's registrar has registered a region, or has
  // failed to.
  void onRegistered(const RegionPtr& region, const Status& status)
      REQUIRES(kEngineLock);
  // Takes out the connection of a failed channel that is polled no more, for
  // close() outside of the lock.
  std::unique_ptr<Connection> takeConnection() REQUIRES(kEngineLock);

 private:
  bool replace(const Status& why, ReplaceAbility::When least)
      REQUIRES(kEngineLock);
  void use(
      std::unique_ptr<Connection> connection,
      std::vector<RejectedRoute> rejected,
      bool began) REQUIRES(kEngineLock);
  bool pollSafely(int most, bool flushes) REQUIRES(kEngineLock);
  bool pollOnce(int most, bool flushes) REQUIRES(kEngineLock);
  void detachIfDrained() REQUIRES(kEngineLock);

  ChannelOwner& owner_;
  Completions& completions_;
  RegionTable& regions_;
  const Outbound::Limits limits_;
  const PeerIdentity peer_;
  State state_ = State::kConnecting;
  Status failure_; // or why the channel is severed
  TimePoint giveUpAt_ = never(); // failed: when idle() waits no longer
  Status peerClosed_; // set by peerClosed() until the route is drained
  ChannelConnection connection_{peer_};
  LentCopies copies_;
  PeerGpus gpus_;
  IncomingMessages incoming_{*this};
  std::optional<ChannelParts> parts_;
};

} // namespace dlslime
