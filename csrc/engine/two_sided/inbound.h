#pragma once

#include <memory>

#include "base/slab.h"
#include "engine/gpu/peer_gpus.h"
#include "engine/progress/completions.h"
#include "engine/two_sided/advertised_receives.h"
#include "engine/two_sided/matcher.h"
#include "engine/two_sided/outbound.h"
#include "interface/transport.h"

namespace dlslime {

class ReceivingGroup;

// What one peer sends to this process: the receiver's half of the protocol
// (docs/protocol.md). Under the engine's lock.
class Inbound {
 public:
  // `limits`: of the peer's messages that wait here. Credit for eager ones is
  // returned in parts of theirs.
  Inbound(
      Connection& connection,
      Outbound& out,
      PeerGpus& gpus,
      Completions& completions,
      const Sequencer& sequencer,
      const Outbound::Limits& limits);

  // A message that is to be kept until it is received. Not ok: a peer that
  // keeps the rules has not sent so much.
  Status admit(const MessageHeader& header, size_t payload);
  // Messages of a group that this peer has joined.
  void
  onEager(ReceivingGroup& group, const MessageHeader& header, ByteSpan payload);
  void onAnnounce(ReceivingGroup& group, const MessageHeader& header);
  void onRevoke(ReceivingGroup& group, const MessageHeader& header);
  // False: that can't be.
  [[nodiscard]] bool onPush(ReceivingGroup& group, const MessageHeader& header);
  // The same for a group that is gone: the sender is told.
  void refuse(const MessageHeader& header);

  void onData(const MessageHeader& header, ByteSpan payload);
  void onPulled(uint64_t pullId, const Status& status);
  void onPartlyPulled(uint64_t pullId, size_t arrived);
  void onRetracted(const MessageHeader& header) {
    ready_.onRetracted(header.id);
  }
  std::optional<MessageHeader> headerOfPush(uint64_t offerId) {
    return ready_.headerOf(offerId);
  }

  // kMoved: an announced message is to be found elsewhere.
  void onMoved(ReceivingGroup& group, const MessageHeader& header);

  // Whether the route can write into memory that is offered.
  bool mayBePushed() const {
    return mayBePushed_;
  }
  // The next message of its source and tag will be for this posted receive.
  void makeReady(ReceivingGroup& group, const OperationPtr& receive) {
    ready_.offer(group, receive, this);
  }
  // Ends a posted receive, now out of the matcher, whose memory was offered.
  void retract(const OperationPtr& receive, const Status& why) {
    ready_.retract(receive, why);
  }
  // A posted receive has found a message of this peer that came earlier.
  void deliver(ReceivingGroup& group, OperationPtr receive, Arrival arrival);
  // An arrival that nobody will receive any more.
  void discard(const Arrival& arrival);
  // Stops fetching; the receive ends with `why` once its memory is quiet.
  void cancel(const OperationPtr& receive, const Status& why);
  // The connection is broken. Receives whose memory something may still write
  // end later, through onPulled().
  void fail(const Status& why);
  bool idle() const {
    return pulls_.size() == 0 && ready_.idle();
  }
  std::vector<OperationPtr> pending(uint64_t groupKey) const;

  // The connection is broken, and another will take its place: what is being
  // fetched waits to be told from where.
  void sever();
  void detach(); // from now on it must not be used,
  void quieted(); // and now it is gone, and touches no memory any more
  void resume(Connection& connection);

 private:
  struct Pull {
    OperationPtr receive;
    uint64_t senderId = 0;
    int source = 0;
    uint64_t length = 0;
    RemoteBuffer remote{}; // where the sender has it
    uint64_t arrived = 0; // bytes that are there, from the beginning
    bool framed = false;
    bool waiting = false; // for kMoved
    bool byGpu = false; // a GPU of ours copies it, and can't be stopped
  };
  OperationPtr takeReceive(ReceivingGroup& group, int source, uint32_t tag);
  void match(ReceivingGroup& group, Arrival arrival);
  void passOn(
      ReceivingGroup& group,
      const MessageHeader& header,
      OperationPtr receive);
  void startPull(
      ReceivingGroup& group,
      OperationPtr receive,
      const Arrival& arrival);
  void fetch(uint64_t pullId, RemoteBuffer source);
  bool pullByGpu(uint64_t pullId, RemoteBuffer source, MemoryView to);
  void countOnGpu(ReceivingGroup& group, uint64_t pullId);
  void endPull(uint64_t pullId, Status status);
  void refuseTooLong(
      ReceivingGroup& group,
      OperationPtr receive,
      const Arrival& arrival);
  void returnCredit(uint64_t cost);
  // Not ok: the memory can't be touched.
  Status copyIn(const OperationPtr& receive, uint64_t offset, ByteSpan payload);
  Status copyWhole(const OperationPtr& receive, ByteSpan message);
  static Status
  whyFailed(const Operation& receive, int source, const Status& status);
  void upload(const OperationPtr& receive, uint64_t offset, ByteSpan payload);
  void sendFinish(uint64_t id, FinishStatus status, uint64_t capacity = 0);

  Connection* connection_; // null: being replaced
  Outbound& out_;
  PeerGpus& gpus_;
  Completions& completions_;
  Slab<Pull> pulls_;
  AdvertisedReceives ready_;
  bool mayBePushed_ = false;
  bool severed_ = false;
  uint32_t generation_ = 0; // of the connection
  const Outbound::Limits limits_;
  const uint64_t creditLump_;
  uint64_t creditOwed_ = 0;
  uint64_t unexpected_ = 0; // eager bytes for which no credit was returned yet
  uint64_t announced_ = 0; // bytes of bookkeeping, until each has its kFinish
};

} // namespace dlslime
