#pragma once

#include <deque>
#include <set>

#include "base/memory/guarded_copy.h"
#include "base/slab.h"
#include "engine/gpu/staging.h"
#include "engine/progress/completions.h"
#include "engine/two_sided/counters.h"
#include "engine/two_sided/peer_advertisements.h"
#include "interface/transport.h"

namespace dlslime {

// Of what is copied through messages, in one of them and at a time: small
// enough that several are on their way in a ring, and that the engine's lock,
// which is held while a few are copied, is not held for long.
constexpr size_t kMostPieceBytes = 64 * 1024;
constexpr int kPiecesPerFlush = 8;
// Fewer bytes are copied into a message, also where the connection gathers.
constexpr size_t kLeastGathered = 16 * 1024;

// What this process sends to one peer: the sender's half of the protocol
// (docs/protocol.md). Under the engine's lock.
class Outbound {
 public:
  struct Limits {
    size_t eagerBytes; // larger messages are announced
    size_t unexpectedBytes; // eager bytes the receiver may have to keep
    size_t announcedBytes = size_t{64} << 20; // and of what is announced
  };
  struct Target {
    uint32_t group; // the receiver's id of the group
    uint32_t source; // our rank in it
    Counters* counters;
  };

  Outbound(Connection& connection, Completions& completions, Limits limits);

  void sendTensor(const OperationPtr& operation, Target target);
  void sendControl(const MessageHeader& header);
  // A message with bytes of its own, if it can go out at once. False: no room,
  // or others are before it.
  [[nodiscard]] bool sendNow(MessageHeader header, ByteSpan payload);
  // The same, by a connection that gathers, of at most so many bytes, once it
  // is known that they can go out: `take` tells where they are.
  struct Gathered {
    bool sent = false; // false: `take` was not called
    Fault fault = Fault::kNone; // they can't be read: no message was sent
  };
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
  // Names memory of a GPU for the peer's copies, after what maps its
  // allocation. False: there is no room for that now.
  [[nodiscard]] bool
  show(Accelerator& gpus, const MemoryView& view, RemoteBuffer& memory);
  // Has the peer let go of what is not shared any more. False: there is no room
  // to tell it of all.
  bool dropUnshared(Accelerator& gpus);
  // Adds the ids under which memory that was shown is known to the peer.
  void addShown(const MemoryView& view, std::set<uint64_t>& ids) const;
  void addShownInUse(std::set<uint64_t>& ids);
  // Takes back a send that is queued or announced; it ends with `why` unless
  // the receiver has matched it.
  void cancel(const OperationPtr& operation, const Status& why);
  // Moves what had to wait for room: what was queued, and then pieces of what
  // the receiver has asked for. True if anything moved.
  bool flushQueued();
  bool flushStreams();
  // Messages without bytes of an operation that wait for room: a peer that
  // reads none of them may go on asking for more.
  size_t waitingControls() const {
    return waitingControls_;
  }
  // All is with the route.
  bool handedOver() const {
    return outbox_.empty() && unconfirmed_.empty();
  }
  bool idle() const {
    return outbox_.empty() && exposures_.size() == 0 && pushes_.size() == 0 &&
        failedSends_.empty();
  }
  // Larger messages than this are announced.
  size_t eagerBytes() const {
    return limits_.eagerBytes;
  }
  // Unfinished sends of this group's operations.
  std::vector<OperationPtr> pending(uint64_t groupKey) const;

  void onFinish(const MessageHeader& header);
  void onRequest(const MessageHeader& header);
  void onCredit(const MessageHeader& header);
  // kRtr, kRetract: where our next message of a tag may be written.
  void onReady(const MessageHeader& header);
  void onRetract(const MessageHeader& header);
  void onReshare(const MessageHeader& header);
  void onPushed(uint64_t pushId, const Status& status);
  // kTruncated: an eager send of ours was refused after its end.
  void onTruncated(const MessageHeader& header);
  // The connection is gone: everything ends with `why`, and its memory is
  // kept until releaseFailed(), when no copy of ours reads it any more.
  void fail(const Status& why);
  void releaseFailed();
  // Nor does the connection: it has been destroyed.
  void releasePushed();

  // The connection is broken, and another will take its place. Until then
  // everything waits; pushes that end badly will be made good.
  void sever();
  // It is gone: with it these messages, perhaps.
  void keepUnconfirmed(std::vector<SentMessage> messages);
  // Here is the other one. The peer has seen every message up to number
  // `peerLast`: what comes after it is sent again. Not ok: that is impossible.
  [[nodiscard]] Status resume(Connection& connection, uint64_t peerLast);

 private:
  struct Queued {
    MessageHeader header;
    OperationPtr eager; // its view is the payload; null for control messages
    Counters* counters = nullptr; // of the eager operation's group
    uint64_t order = 0; // ascending
    bool cancelled = false; // only its place is left
    bool control = false; // there was no operation from the beginning
  };
  struct Exposure {
    OperationPtr operation;
    MessageHeader announce;
    bool streaming = false; // the receiver has asked for it in pieces
    bool moved = false; // since the receiver was told where it is
    bool failed = false; // its memory can't be read
    std::unique_ptr<StagedSource> staged = nullptr; // streaming, from a GPU,
    uint64_t fetched = 0; // up to there
  };
  // A message that is being written where the receiver wants it.
  struct Pushing {
    OperationPtr operation;
    MessageHeader announce; // to send it again another way; with its sequence
    bool over = false; // badly, with a connection that is being replaced
  };
  // An announced message that we copy to the receiver through messages.
  struct Stream {
    uint64_t id; // ours
    uint64_t pullId; // the receiver's
    uint64_t offset;
  };
  // An eager send that is over; forgotten when so many others have followed.
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
  Connection::Push tryPush(Queued& entry);
  void countSent(const Operation& operation);
  void post(Queued entry);
  bool hasCredit(uint64_t length) const;
  bool announce(Queued& entry);
  void announceFailed(Queued& entry, Fault fault);
  static Status unreadable(const Operation& operation, Fault fault);
  OperationPtr forget(uint64_t id);
  bool streamPiece(Stream& stream);
  static ByteSpan fromGpu(Exposure& exposure, size_t most);
  RemoteBuffer expose(uint64_t id, const Operation& operation);
  bool tell(MessageType type, uint64_t id, ByteSpan payload);
  bool flushUnconfirmed();
  void endPushes(uint64_t peerLast);
  void exposeAgain();
  void renew(MessageHeader& header);

  Connection* connection_; // null: being replaced
  Completions& completions_;
  const Limits wanted_;
  Limits limits_; // the same, within what the connection can do
  bool severed_ = false;
  bool failed_ = false;
  Status failure_;
  std::vector<OperationPtr> failedSends_; // ended, memory perhaps in use
  uint64_t nextSequence_ = 1;
  uint64_t outstanding_ = 0; // eager cost that the receiver has not returned
  std::deque<SentMessage> unconfirmed_; // of connections that are gone
  std::deque<Queued> outbox_;
  size_t waitingControls_ = 0; // of them
  uint64_t nextOrder_ = 1;
  Slab<Exposure> exposures_;
  std::deque<Stream> streams_;
  std::set<uint64_t> shown_; // allocations of GPUs that the peer knows of,
  Accelerator* gpus_ = nullptr; // and whose those are
  PeerAdvertisements targets_;
  Slab<Pushing> pushes_;
  std::vector<Recent> recent_{kRecent}; // by sequence number, modulo
};

// What an eager message may cost the receiver: its bytes and its bookkeeping.
constexpr uint64_t eagerCost(uint64_t length) {
  return length + 128;
}

// What kFinish says about an announced message, for its send.
Status finishError(const Operation& send, const MessageHeader& finish);

} // namespace dlslime
