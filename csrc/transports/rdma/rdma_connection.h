#pragma once

#include <array>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "interface/transport.h"
#include "transports/rdma/bulk.h"
#include "transports/rdma/device/offered_memory.h"
#include "transports/rdma/eager_ring.h"
#include "transports/rdma/end_address.h"
#include "transports/rdma/rail.h"
#include "transports/rdma/rail_memory.h"
#include "transports/rdma/ring_memory.h"

namespace dlslime::rdma {

// One reliable connection between two processes (docs/protocol.md, "RDMA"),
// over one or several rails: messages and pushes go by the first one, large
// reads by all. If one breaks, all of it does, and another connection takes its
// place. Made in steps, as the handshake goes: an address to tell the peer,
// connect() with the peer's, then verify() here and confirm() there.
class RdmaConnection final : public Connection {
 public:
  using Rails = std::vector<std::unique_ptr<Rail>>;
  // Finds what registers memory with the NICs that are left; it must live as
  // long as the transport. Called on the thread that connects.
  using FindRegistrar =
      std::function<MemoryRegistrar*(const std::vector<NicPtr>& nics)>;

  RdmaConnection(
      std::unique_ptr<RingMemory> memory,
      Rails rails,
      FindRegistrar findRegistrar);
  ~RdmaConnection() override;

  EndAddress address() const;
  // Drops the rails that the peer does not have, and those that can't be
  // connected. `initiator` speaks first: the other end's queue pairs are ready
  // before its own, so what that one sent at once would be lost and sent again
  // late. Throws Error: no rail is left.
  void connect(const EndAddress& peer, bool initiator);
  bool verify(Bytes& result) override;
  void confirm(ByteSpan result) override;

  std::string_view route() const override {
    return "rdma";
  }
  std::string_view copyName() const override {
    return "read";
  }
  std::string describe() const override; // the NICs
  size_t maxPayload() const override {
    return kMostRecordBytes - sizeof(MessageHeader);
  }
  bool hasRoom(size_t payload) override;
  bool send(const MessageHeader& header, ByteSpan payload) override;
  MemoryRegistrar* registrar() override {
    return registrar_;
  }
  MemoryUse memoryUse() const override {
    return {0, 2 * kRingBytes}; // NICs may write to it at any time
  }
  RemoteBuffer expose(uint64_t id, MemoryView view) override;
  void unexpose(uint64_t id) override;
  bool takesGpus() const override {
    return true;
  }
  bool pull(
      uint64_t pullId,
      uint64_t peerId,
      RemoteBuffer source,
      MemoryView destination) override;
  void abandon(uint64_t pullId) override;
  bool direct(const RemoteBuffer& there, const void* registration)
      const override;
  RemoteBuffer reach(MemoryView view, const void* registration) override;
  void start(const TransferWork& work) override;
  void stop(uint64_t transferId) override;
  void beginBatch() override;
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
  Replaceable replaceable() const override {
    return Replaceable::kBroken;
  }
  size_t lanes() const override;
  size_t merit() const override;
  void sever() override;
  bool drained() const override;
  bool allSent() override;
  std::vector<SentMessage> unconfirmed() const override;
  bool close(bool atOnce) override;

 private:
  bool postFlush();
  // Messages go by this one, so that their immediates come in order.
  Rail& first() {
    return *rails_.front();
  }
  const Rail& first() const {
    return *rails_.front();
  }
  void keepRails(uint32_t numbers);
  std::vector<NicPtr> nics() const;
  RailMemory::Regions registered(MemoryView view) const;
  void postBulk();
  void breakWith(const Rail& rail, const std::string& what);

  // rdma_messages.cpp
  int pollRail(Rail& rail, ConnectionEvents& events, int most);
  void
  onCompletion(Rail& rail, const ibv_wc& completion, ConnectionEvents& events);
  void onImmediate(const ibv_wc& completion, ConnectionEvents& events);
  void onRecord(uint32_t position, ConnectionEvents& events);
  void postRecord(uint32_t position, size_t bytes);
  void postGreeting(Rail& rail);
  bool postCredit(Rail& rail, uint32_t position, RequestKind kind);
  void returnCredit();
  void giveBackReceives(Rail& rail, uint32_t least);

  // rdma_push.cpp
  void
  onPushed(uint32_t number, const Status& status, ConnectionEvents& events);
  void onLanded(uint32_t immediate, size_t bytes, ConnectionEvents& events);
  void losePushes(uint32_t first);
  void reportFailedPushes(ConnectionEvents& events);

  struct Pushing {
    uint32_t number = 0;
    uint64_t id = 0;
    MemoryRegionPtr region; // of what is being read
    bool over = false; // badly
  };

  const std::unique_ptr<RingMemory> memory_;
  Rails rails_; // at least one
  RailMemory regions_;
  Bulk bulk_;
  const FindRegistrar findRegistrar_;
  MemoryRegistrar* registrar_ = nullptr;
  RingProducer out_;
  RingConsumer in_;
  TimePoint verifyBy_ = never(); // after the first rail has shown that it works
  bool reached_ = false; // the peer may transfer from and to our memory
  bool peerReady_ = false; // it has said something
  bool flushAsked_ = false; // by allSent()
  bool closing_ = false; // the last request is posted
  bool flushed_ = false; // nothing comes any more: broken, and all was seen
  bool givenUp_ = false; // what has failed may be reported
  Status broken_;
  static constexpr int kPollBatch = 32;
  std::array<ibv_wc, kPollBatch> polled_{}; // of one poll; not cleared for each
  std::map<uint64_t, RailMemory::Regions> exposed_;
  OfferedMemory offered_;
  std::deque<Pushing> pushing_; // oldest first, as they complete
  uint32_t nextPush_ = 1;
};

} // namespace dlslime::rdma
