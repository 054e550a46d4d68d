#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>

#include "core/transport.h"
#include "rdma/eager_ring.h"
#include "rdma/end_address.h"
#include "rdma/offered_memory.h"
#include "rdma/queue_pair.h"
#include "rdma/read_pulls.h"
#include "rdma/ring_memory.h"
#include "rdma/send_queue.h"

namespace dlslime::rdma {

// One reliable connection between two processes (docs/protocol.md, "RDMA").
// Made in two steps, as the handshake goes: first an address to tell the peer,
// then connect() with the peer's.
class RdmaConnection final : public Connection {
 public:
  RdmaConnection(
      NicPtr nic,
      CompletionQueuePtr completions,
      const RdmaConfig& config);
  ~RdmaConnection() override;

  EndAddress address() const;
  // `initiator` speaks first: the other end's queue pair is ready before its
  // own, so what that one sent at once would be lost and sent again late.
  // Throws Error.
  void connect(const EndAddress& peer, bool initiator);

  std::string_view route() const override {
    return "rdma";
  }
  std::string_view copyName() const override {
    return "read";
  }
  size_t maxPayload() const override {
    return kMostRecordBytes - sizeof(MessageHeader);
  }
  bool send(const MessageHeader& header, ByteSpan payload) override;
  MemoryRegistrar* registrar() override {
    return &nic_->memory();
  }
  RemoteBuffer expose(uint64_t id, MemoryView view) override;
  void unexpose(uint64_t id) override;
  bool canPull(RemoteBuffer source, MemoryView destination) const override;
  void pull(
      uint64_t pullId,
      uint64_t peerId,
      RemoteBuffer source,
      MemoryView destination) override;
  void abandon(uint64_t pullId) override;
  void beginBatch() override {
    queue_.hold();
  }
  void endBatch() override;
  PushRange pushRange() const override;
  std::optional<RemoteBuffer> offer(uint64_t id, MemoryView view) override;
  void withdraw(uint64_t id) override {
    offered_.withdraw(id);
  }
  Push push(
      uint64_t id,
      RemoteBuffer target,
      MemoryView source,
      uint64_t sequence) override;
  bool poll(ConnectionEvents& events, Status& broken, int most) override;
  void endPulls() override;
  void peerClosed() override;
  bool replaceable() const override {
    return true;
  }
  void sever() override;
  bool drained() const override;
  std::vector<SentMessage> unconfirmed() const override;
  bool verify(Bytes& result) override;
  void close() override;

  // Completions that fit: every request of both queues.
  static int mostCompletions();

 private:
  void onCompletion(const ibv_wc& completion, ConnectionEvents& events);
  void onImmediate(const ibv_wc& completion, ConnectionEvents& events);
  void
  onPushed(uint32_t number, const Status& status, ConnectionEvents& events);
  void reportFailedPushes(ConnectionEvents& events);
  void onLanded(uint32_t immediate, size_t bytes, ConnectionEvents& events);
  void onRecord(uint32_t position, ConnectionEvents& events);
  bool postRecord(uint32_t position, size_t bytes);
  bool postCredit(uint32_t position, RequestKind kind);
  void returnCredit();
  void giveBackReceives(uint32_t least);
  void breakWith(const std::string& what);
  MemoryRegionPtr regionFor(MemoryView view) const;

  struct Pushing {
    uint32_t number = 0;
    uint64_t id = 0;
    MemoryRegionPtr region; // of what is being read
    bool over = false; // badly
  };

  const NicPtr nic_;
  const CompletionQueuePtr completions_;
  const RingMemory memory_;
  QueuePair pair_;
  SendQueue queue_;
  ReadPulls pulls_;
  EndAddress peer_;
  RingProducer out_;
  RingConsumer in_;
  bool peerReady_ = false; // it has said something
  bool greeted_ = false; // the initiator: what it said first has arrived
  bool flushed_ = false; // nothing comes any more: broken, and all was seen
  bool givenUp_ = false; // what has failed may be reported
  uint32_t takenReceives_ = 0; // to be posted again
  Status broken_;
  std::map<uint64_t, MemoryRegionPtr> exposed_;
  OfferedMemory offered_;
  std::deque<Pushing> pushing_; // oldest first, as they complete
  uint32_t nextPush_ = 1;
};

} // namespace dlslime::rdma
