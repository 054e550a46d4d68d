#pragma once

#include <deque>
#include <set>

#include "base/memory/guarded_copy.h"
#include "base/slab.h"
#include "engine/gpu/staging.h"
#include "engine/progress/completions.h"
#include "engine/two_sided/counters.h"
#include "engine/two_sided/peer_advertisements.h"
#include "engine/wire/gpu_messages.h"
#include "engine/wire/two_sided_messages.h"
#include "interface/transport.h"

namespace dlslime {

class ReceivingGroup;

// kMostPieceBytes and kPiecesPerFlush limit what is copied through messages:
// small enough for several messages on their way in a ring, and for a short
// hold of the engine's lock, which is held while a few are copied.
constexpr size_t kMostPieceBytes = 64 * 1024;
constexpr int kPiecesPerFlush = 8;
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
    auto* const gatherer = connection_->gatherer();
    if (!mayGo() || !gatherer->canGather(most)) {
      return {};
    }
    const std::vector<ByteSpan> places = take();
    header.sequence = nextSequence_;
    const auto fault = gatherer->sendGathered(header, places);
    nextSequence_ += fault == Fault::kNone ? 1 : 0;
    return {true, fault};
  }
  // Names memory of a GPU for copies by the peer, and before that shares the
  // allocations. False: no room for the Shares now.
  [[nodiscard]] bool
  show(Accelerator& gpus, const MemoryView& view, RemoteBuffer& memory);
  // Tells the peer to unmap allocations not shared any more. False: no room to
  // tell of all.
  bool dropUnshared(Accelerator& gpus);
  // Adds the ids of the view's allocations, if the peer knows any of our GPU
  // memory.
  void addShown(const MemoryView& view, std::set<uint64_t>& ids) const;
  // Adds the ids of the allocations that hold announced messages.
  void addShownInUse(std::set<uint64_t>& ids);
  // Takes a send back: it ends with `why` unless the receiver has matched it.
  void cancel(const OperationPtr& operation, const Status& why) override;
  // Sends queued messages while the route has room. True if any were sent.
  bool flushQueued();
  // Sends pieces of requested streams, if no message is queued. True if any
  // were sent.
  bool flushStreams();
  // Number of control messages waiting for room: a peer that reads none may go
  // on asking for more.
  size_t waitingControls() const {
    return waitingControls_;
  }
  // True if all messages are with the route.
  bool handedOver() const {
    return outbox_.empty() && unconfirmed_.empty();
  }
  bool idle() const {
    return outbox_.empty() && exposures_.size() == 0 && pushes_.size() == 0 &&
        failedSends_.empty();
  }
  // Messages larger than this are announced.
  size_t eagerBytes() const {
    return limits_.eagerBytes;
  }
  // Returns the unfinished sends of a group.
  std::vector<OperationPtr> pending(uint64_t groupKey) const;

  void onFinish(const wire::Finish& finish);
  void onStreamRequest(const wire::StreamRequest& request);
  void onCredit(const wire::Credit& credit);
  void onRtr(const wire::Rtr& rtr);
  void onRetract(const wire::Retract& retract);
  void onReshare(const wire::Reshare& reshare);
  void onPushed(uint64_t pushId, const Status& status);
  // Fails an eager send that has ended, because the receiver has refused the
  // message. Null: the group is gone.
  void onTruncated(ReceivingGroup* group, const wire::Truncated& truncated);
  // Ends all sends with `why`, because the connection is gone. Memory is kept
  // until releaseFailed(), when no copy of ours reads it any more.
  void fail(const Status& why);
  void releaseFailed();
  // Releases the memory of pushes, after the connection was destroyed.
  void releasePushed();

  // Makes all messages wait for a replacement of the connection. Pushes that
  // end badly meanwhile are sent again.
  void sever();
  // Takes the messages that may be lost with the connection, which is not used
  // any more.
  void keepUnconfirmed(std::vector<SentMessage> messages);
  // Goes on by the new connection. The peer has seen every message up to number
  // `peerLast`; later messages are sent again. Not ok: a later message is lost.
  [[nodiscard]] Status resume(Connection& connection, uint64_t peerLast);

 private:
  struct Queued {
    MessageHeader header;
    // The view is the payload; null for a control message or an Rts.
    OperationPtr eager;
    Counters* counters = nullptr; // of the eager operation's group
    uint64_t order = 0; // ascending
    bool cancelled = false; // only the place is left
    bool control = false; // posted without an operation
  };
  // Announced message, until the receiver has told the end.
  struct Exposure {
    OperationPtr operation;
    wire::Rts rts;
    bool streaming = false; // the receiver has asked for a stream
    bool moved = false; // the receiver has yet to be told the new place
    bool failed = false; // the memory can't be read
    // Set while streaming from a GPU.
    std::unique_ptr<StagedSource> staged = nullptr;
    uint64_t fetched = 0; // bytes of the message given to `staged`
  };
  // Message being written into memory offered by the receiver.
  struct Pushing {
    OperationPtr operation;
    wire::Rts rts; // for announcing a lost push
    uint64_t sequence = 0; // sequence number of the message
    bool over = false; // failed with a connection being replaced
  };
  // Announced message that is copied to the receiver through messages.
  struct Stream {
    uint64_t id; // our id of the message
    uint64_t pullId; // the receiver's id of the stream
    uint64_t offset;
  };
  // Eager send that has ended; may be forgotten once kRecent messages have
  // followed.
  struct Recent {
    uint64_t sequence = 0;
    std::weak_ptr<Operation> operation;
  };
  static constexpr size_t kRecent = 256;
  bool mayGo() const {
    return !failed_ && !severed_ && outbox_.empty() && unconfirmed_.empty();
  }
  bool mayRead(const MemoryView& view, size_t size);
  bool trySend(Queued& entry);
  void cancelQueued(const OperationPtr& operation, const Status& why);
  PushAbility::Result tryPush(Queued& entry);
  void countSent(const Operation& operation);
  void post(Queued entry);
  bool hasCredit(uint64_t length) const;
  // Returns the Rts that replaces an eager message, without id and memory.
  static wire::Rts rtsOf(const Queued& entry);
  bool announce(Queued& entry);
  void announceFailed(Queued& entry, Fault fault);
  static Status unreadable(const Operation& operation, Fault fault);
  OperationPtr forget(uint64_t id);
  bool streamPiece(Stream& stream);
  static ByteSpan fromGpu(Exposure& exposure, size_t most);
  RemoteBuffer expose(uint64_t id, const Operation& operation);
  bool tell(MessageHeader header, ByteSpan payload);
  bool flushUnconfirmed();
  // Queues a message, old or new, under a sequence number used before.
  template <typename Message>
  void sendInPlace(const Message& message, uint64_t sequence) {
    auto header = wire::encode(message);
    header.sequence = sequence;
    unconfirmed_.push_back({header, {}});
  }
  void endPushes(uint64_t peerLast);
  void exposeAgain();
  void renew(MessageHeader& header);
  template <typename Message>
  void renewMemory(MessageHeader& header);

  Connection* connection_; // null: being replaced
  Completions& completions_;
  const Limits wanted_;
  Limits limits_; // wanted_, within what the connection can do
  bool severed_ = false;
  bool failed_ = false;
  Status failure_;
  std::vector<OperationPtr> failedSends_; // ended, with memory perhaps in use
  uint64_t nextSequence_ = 1;
  uint64_t outstanding_ = 0; // eagerCost() not returned by the receiver yet
  std::deque<SentMessage> unconfirmed_; // messages of connections that are gone
  std::deque<Queued> outbox_;
  size_t waitingControls_ = 0; // control messages in outbox_
  uint64_t nextOrder_ = 1;
  Slab<Exposure> exposures_;
  std::deque<Stream> streams_;
  std::set<uint64_t> shown_; // GPU allocations known to the peer
  Accelerator* gpus_ = nullptr; // of the allocations in shown_
  PeerAdvertisements targets_;
  Slab<Pushing> pushes_;
  std::vector<Recent> recent_{kRecent}; // by sequence number modulo kRecent
};

// Cost of an eager message for the receiver, in bytes: payload and bookkeeping.
constexpr uint64_t eagerCost(uint64_t length) {
  return length + 128;
}

// Logs that an eager send, already ended, was longer than the receive.
void logTruncated(const ReceivingGroup& group, const wire::Truncated& told);
// Returns the status of a send, as told by the receiver.
Status finishError(const Operation& send, const wire::Finish& finish);

} // namespace dlslime
