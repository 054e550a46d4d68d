#pragma once

#include <deque>

#include "core/slab.h"
#include "core/transport.h"
#include "engine/completions.h"
#include "engine/counters.h"
#include "engine/push_targets.h"

namespace dlslime {

// What this process sends to one peer: the sender's half of the protocol
// (docs/protocol.md). Under the engine's lock.
class Outbound {
 public:
  struct Limits {
    size_t eagerBytes; // larger messages are announced
    size_t unexpectedBytes; // eager bytes the receiver may have to keep
  };
  struct Target {
    uint32_t group; // the receiver's id of the group
    uint32_t source; // our rank in it
    Counters* counters;
  };

  Outbound(Connection& connection, Completions& completions, Limits limits)
      : connection_(connection), completions_(completions), limits_(limits) {}

  void sendTensor(const OperationPtr& operation, Target target);
  void sendControl(const MessageHeader& header);
  // Takes back a send that is queued or announced; it ends with `why` unless
  // the receiver has matched it.
  void cancel(const OperationPtr& operation, const Status& why);
  // Moves what had to wait for room. True if anything moved.
  bool flush();
  bool idle() const {
    return outbox_.empty() && exposures_.size() == 0 && pushes_.size() == 0 &&
        failedSends_.empty();
  }
  // Unfinished sends of this group's operations.
  std::vector<OperationPtr> pending(uint64_t groupKey) const;

  void onFinish(const MessageHeader& header);
  void onRequest(const MessageHeader& header);
  void onCredit(const MessageHeader& header);
  // kReady, kRetract: where our next message of a tag may be written.
  void onReady(const MessageHeader& header);
  void onRetract(const MessageHeader& header);
  void onPushed(uint64_t pushId, const Status& status);
  // kTruncated: an eager send of ours was refused after its end.
  void onTruncated(const MessageHeader& header);
  // The connection is gone: everything ends with `why`, and its memory is
  // kept until releaseFailed(), when no copy of ours reads it any more.
  void fail(const Status& why);
  void releaseFailed();

 private:
  struct Queued {
    MessageHeader header;
    OperationPtr eager; // its view is the payload; null for control messages
    Counters* counters = nullptr; // of the eager operation's group
  };
  struct Exposure {
    OperationPtr operation;
    MessageHeader announce;
    bool streaming = false; // the receiver has asked for it in pieces
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
  bool trySend(Queued& entry);
  Connection::Push tryPush(Queued& entry);
  void countSent(const Operation& operation);
  void post(Queued entry);
  bool hasCredit(uint64_t length) const;
  void announce(Queued& entry);
  OperationPtr forget(uint64_t id);
  bool flushStreams();
  bool streamPiece(Stream& stream);

  Connection& connection_;
  Completions& completions_;
  const Limits limits_;
  bool failed_ = false;
  Status failure_;
  std::vector<OperationPtr> failedSends_; // ended, memory perhaps in use
  uint64_t nextSequence_ = 1;
  uint64_t outstanding_ = 0; // eager cost that the receiver has not returned
  std::deque<Queued> outbox_;
  Slab<Exposure> exposures_;
  std::deque<Stream> streams_;
  PushTargets targets_;
  Slab<OperationPtr> pushes_; // being written
  std::vector<Recent> recent_{kRecent}; // by sequence number, modulo
};

// What an eager message may cost the receiver: its bytes and its bookkeeping.
constexpr uint64_t eagerCost(uint64_t length) {
  return length + 128;
}

} // namespace dlslime
