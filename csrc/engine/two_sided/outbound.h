#pragma once

#include <set>
#include <vector>

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

  void sendTensor(const OperationPtr& operation, Target target);
  // Sends or queues a message without a payload.
  template <typename Message>
  void sendControl(const Message& message) {
    post({wire::encode(message), nullptr, nullptr, 0, false, true});
  }
  // Sends a message with a payload, but only at once. False: no room, or
  // earlier messages are waiting.
  [[nodiscard]] bool sendNow(MessageHeader header, ByteSpan payload);
  // Result of sendGathered().
  struct Gathered {
    bool sent = false; // false: `take` was not called
    Fault fault = Fault::kNone; // the bytes can't be read: no message was sent
  };
  // Sends a message with a payload of at most `most` bytes at once, by a
  // connection that gathers. Calls `take` for the places of the bytes only when
  // the message can go out.
  template <typename Take>
  Gathered sendGathered(MessageHeader& header, size_t most, const Take& take) {
    if (!mayGo() || !output_.connection()->gatherer()->canGather(most)) {
      return {};
    }
    return {true, output_.sendGathered(header, take())};
  }
  // Our GPU memory that the peer knows.
  GpuShares& shares() {
    return shares_;
  }
  // Adds the ids of the allocations that hold announced messages.
  void addShownInUse(std::set<uint64_t>& ids) {
    rendezvous_.addShownInUse(ids);
  }
  // Takes a send back: it ends with `why` unless the receiver has matched it.
  void cancel(const OperationPtr& operation, const Status& why) override;
  // Sends queued messages while the route has room. True if any were sent.
  bool flushQueued();
  // Sends pieces of requested streams, if no message is queued. True if any
  // were sent.
  bool flushStreams() {
    return mayGo() && rendezvous_.flushStreams();
  }
  // Number of control messages waiting for room: a peer that reads none may go
  // on asking for more.
  size_t waitingControls() const {
    return outbox_.controls();
  }
  // True if all messages are with the route.
  bool handedOver() const {
    return outbox_.empty() && output_.handedOver();
  }
  bool idle() const {
    return outbox_.empty() && rendezvous_.empty() && pushes_.empty() &&
        failedSends_.empty();
  }
  // Messages larger than this are announced.
  size_t eagerBytes() const {
    return limits_.eagerBytes;
  }
  // Returns the unfinished sends of a group.
  std::vector<OperationPtr> pending(uint64_t groupKey) const;

  void onFinish(const wire::Finish& finish) {
    rendezvous_.onFinish(finish);
  }
  void onStreamRequest(const wire::StreamRequest& request) {
    rendezvous_.onStreamRequest(request);
  }
  void onCredit(const wire::Credit& credit);
  void onRtr(const wire::Rtr& rtr) {
    pushes_.onRtr(rtr);
  }
  void onRetract(const wire::Retract& retract);
  void onReshare(const wire::Reshare& reshare);
  void onPushed(uint64_t pushId, const Status& status) {
    pushes_.onPushed(pushId, status);
  }
  // Fails an eager send that has ended. Null: the group is gone.
  void onTruncated(
      const ReceivingGroup* group,
      const wire::Truncated& truncated) {
    recent_.onTruncated(group, truncated);
  }
  // Ends all sends with `why`, because the connection is gone. Memory is kept
  // until releaseFailed(), when no copy of ours reads it any more.
  void fail(const Status& why);
  void releaseFailed();
  // Releases the memory of pushes, after the connection was destroyed.
  void releasePushed() {
    pushes_.release();
  }

  // Makes all messages wait for a replacement of the connection. Pushes that
  // end badly meanwhile are sent again.
  void sever() {
    output_.sever();
  }
  // Takes the messages that may be lost with the connection, which is not used
  // any more.
  void keepUnconfirmed(std::vector<SentMessage> messages);
  // Goes on by the new connection. The peer has seen every message up to number
  // `peerLast`; later messages are sent again. Not ok: a later message is lost.
  [[nodiscard]] Status resume(Connection& connection, uint64_t peerLast);

 private:
  bool mayGo() const {
    return output_.open() && outbox_.empty();
  }
  void post(Outbox::Message entry);
  bool trySend(Outbox::Message& entry);
  bool tryEager(Outbox::Message& entry);
  bool tryControl(const MessageHeader& header);
  bool announce(Outbox::Message& entry);
  bool hasCredit(uint64_t length) const;

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
