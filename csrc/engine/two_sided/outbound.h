#pragma once

#include <set>
#include <vector>

#include "engine/progress/engine_mutex.h"
#include "engine/two_sided/outbox.h"
#include "engine/two_sided/push_sends.h"
#include "engine/two_sided/receiver_errors.h"
#include "engine/two_sided/rendezvous_sends.h"

namespace dlslime {

// Fewer bytes are copied into a message even if the connection can gather.
constexpr size_t kLeastGathered = 16 * 1024;

// Messages from this process to a peer: the sender's half of the protocol
// (docs/protocol.md). Under the engine's lock.
class Outbound final : public OperationHolder {
 public:
  struct Limits {
    size_t eagerBytes; // larger messages are announced
    size_t unexpectedBytes; // eager bytes that the receiver may have to keep
    // Bytes that the receiver may have to keep of announced messages.
    size_t announcedBytes = size_t{64} << 20;
  };
  struct Target {
    uint32_t group; // the receiver's id of the group
    uint32_t source; // our rank in the group
    Counters* counters;
  };

  Outbound(Connection& connection, Completions& completions, Limits limits);

  void sendTensor(const OperationPtr& operation, Target target)
      REQUIRES(kEngineLock);
  // Sends or queues a message without a payload.
  template <typename Message>
  void sendControl(const Message& message) REQUIRES(kEngineLock) {
    post({wire::encode(message), nullptr, nullptr, 0, false, true});
  }
  // Sends a message with a payload, but only at once. False: no room, or
  // earlier messages are waiting.
  [[nodiscard]] bool sendNow(MessageHeader header, ByteSpan payload)
      REQUIRES(kEngineLock);
  // Result of sendGathered().
  struct Gathered {
    bool sent = false; // false: `take` was not called
    Fault fault = Fault::kNone; // the bytes can't be read: no message was sent
  };
  // Sends a message with a payload of at most `most` bytes at once, by a
  // connection that gathers. Calls `take` for the places of the bytes only when
  // the message can go out.
  template <typename Take>
  Gathered sendGathered(MessageHeader& header, size_t most, const Take& take)
      REQUIRES(kEngineLock) {
    if (!mayGo() || !output_.connection()->gatherer()->canGather(most)) {
      return {};
    }
    return {true, output_.sendGathered(header, take())};
  }
  // Our GPU memory that the peer knows.
  GpuShares& shares() REQUIRES(kEngineLock) {
    return shares_;
  }
  // Adds the ids of the allocations that hold announced messages.
  void addShownInUse(std::set<uint64_t>& ids) REQUIRES(kEngineLock) {
    rendezvous_.addShownInUse(ids);
  }
  // Takes a send back: it ends with `why` unless the receiver has matched it.
  void cancel(const OperationPtr& operation, const Status& why)
      REQUIRES(kEngineLock) override;
  // Sends queued messages while the route has room. True if any were sent.
  bool flushQueued() REQUIRES(kEngineLock);
  // Sends pieces of requested streams, if no message is queued. True if any
  // were sent.
  bool flushStreams() REQUIRES(kEngineLock) {
    return mayGo() && rendezvous_.flushStreams();
  }
  // Number of control messages waiting for room: a peer that reads none may go
  // on asking for more.
  size_t waitingControls() const REQUIRES(kEngineLock) {
    return outbox_.controls();
  }
  // True if all messages are with the route.
  bool handedOver() const REQUIRES(kEngineLock) {
    return outbox_.empty() && output_.handedOver();
  }
  bool idle() const REQUIRES(kEngineLock) {
    return outbox_.empty() && rendezvous_.empty() && pushes_.empty() &&
        failedSends_.empty();
  }
  // Messages larger than this are announced.
  size_t eagerBytes() const REQUIRES(kEngineLock) {
    return limits_.eagerBytes;
  }
  // Returns the unfinished sends of a group.
  std::vector<OperationPtr> pending(uint64_t groupKey) const
      REQUIRES(kEngineLock);

  void onFinish(const wire::Finish& finish) REQUIRES(kEngineLock) {
    rendezvous_.onFinish(finish);
  }
  void onStreamRequest(const wire::StreamRequest& request)
      REQUIRES(kEngineLock) {
    rendezvous_.onStreamRequest(request);
  }
  void onCredit(const wire::Credit& credit) REQUIRES(kEngineLock);
  void onRtr(const wire::Rtr& rtr) REQUIRES(kEngineLock) {
    pushes_.onRtr(rtr);
  }
  void onRetract(const wire::Retract& retract) REQUIRES(kEngineLock);
  void onReshare(const wire::Reshare& reshare) REQUIRES(kEngineLock);
  void onPushed(uint64_t pushId, const Status& status) REQUIRES(kEngineLock) {
    pushes_.onPushed(pushId, status);
  }
  // Fails an eager send that has ended. Null: the group is gone.
  void onTruncated(
      const ReceivingGroup* group,
      const wire::Truncated& truncated) REQUIRES(kEngineLock) {
    recent_.onTruncated(group, truncated);
  }
  // Ends all sends with `why`, because the connection is gone. Memory is kept
  // until releaseFailed(), when no copy of ours reads it any more.
  void fail(const Status& why) REQUIRES(kEngineLock);
  void releaseFailed() REQUIRES(kEngineLock);
  // Releases the memory of pushes, after the connection was destroyed.
  void releasePushed() REQUIRES(kEngineLock) {
    pushes_.release();
  }

  // Makes all messages wait for a replacement of the connection. Pushes that
  // end badly meanwhile are sent again.
  void sever() REQUIRES(kEngineLock) {
    output_.sever();
  }
  // Takes the messages that may be lost with the connection, which is not used
  // any more.
  void keepUnconfirmed(std::vector<SentMessage> messages) REQUIRES(kEngineLock);
  // Goes on by the new connection. The peer has seen every message up to number
  // `peerLast`; later messages are sent again. Not ok: a later message is lost.
  [[nodiscard]] Status resume(Connection& connection, uint64_t peerLast)
      REQUIRES(kEngineLock);

 private:
  bool mayGo() const REQUIRES(kEngineLock) {
    return output_.open() && outbox_.empty();
  }
  void post(Outbox::Message entry) REQUIRES(kEngineLock);
  bool trySend(Outbox::Message& entry) REQUIRES(kEngineLock);
  bool tryEager(Outbox::Message& entry) REQUIRES(kEngineLock);
  bool tryControl(const MessageHeader& header) REQUIRES(kEngineLock);
  bool announce(Outbox::Message& entry) REQUIRES(kEngineLock);
  bool hasCredit(uint64_t length) const REQUIRES(kEngineLock);

  SequencedOutput output_;
  GpuShares shares_{output_};
  RendezvousSends rendezvous_;
  PushSends pushes_;
  Completions& completions_;
  const Limits wanted_;
  Limits limits_; // wanted_, within what the connection can do
  std::vector<OperationPtr> failedSends_; // ended, with memory perhaps in use
  uint64_t outstanding_ = 0; // eagerCost() not returned by the receiver yet
  Outbox outbox_;
  RecentSends recent_;
};

// Cost of an eager message for the receiver, in bytes: payload and bookkeeping.
constexpr uint64_t eagerCost(uint64_t length) {
  return length + 128;
}

} // namespace dlslime
