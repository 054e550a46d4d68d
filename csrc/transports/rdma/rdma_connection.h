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

// A reliable connection between two processes over one or several rails
// (docs/protocol.md, "RDMA"). Messages and pushes go over the first rail, bulk
// data over all rails. If a rail breaks, the whole connection breaks, and
// another connection takes its place. The handshake makes a connection in
// steps: address() for the peer, connect() with the peer's address, then
// verify() at the initiator and confirm() at the acceptor.
class RdmaConnection final : public Connection,
                             public PullAbility,
                             public PushAbility,
                             public RmaAbility,
                             public BatchAbility,
                             public VerifyAbility,
                             public ReplaceAbility {
 public:
  using Rails = std::vector<std::unique_ptr<Rail>>;
  // Returns the registrar for the remaining NICs. The registrar lives as long
  // as the transport. Called on the connecting thread.
  using FindRegistrar =
      std::function<MemoryRegistrar*(const std::vector<NicPtr>& nics)>;

  RdmaConnection(
      std::unique_ptr<RingMemory> memory,
      Rails rails,
      FindRegistrar findRegistrar);
  ~RdmaConnection() override;

  EndAddress address() const;
  // Connects the rails, and drops rails that the peer does not have or that
  // can't be connected. `initiator` sends first: the acceptor's queue pairs are
  // ready before the initiator's, so an early message of the acceptor would be
  // lost, and sent again late. Throws Error if no rail is left.
  void connect(const EndAddress& peer, bool initiator);
  bool verify(Bytes& result) override;
  void confirm(ByteSpan result) override;

  ConnectionInfo info() const override;
  bool hasRoom(size_t payload) override;
  bool send(const MessageHeader& header, ByteSpan payload) override;
  RemoteBuffer expose(uint64_t id, MemoryView view) override;
  void unexpose(uint64_t id) override;
  bool pull(
      uint64_t pullId,
      uint64_t peerId,
      RemoteBuffer source,
      MemoryView destination) override;
  void abandon(uint64_t pullId) override;
  bool direct(const RemoteBuffer& there, const Registration* registration)
      const override;
  RemoteBuffer reach(MemoryView view, const Registration* registration)
      override;
  void start(const TransferWork& work) override;
  void stop(uint64_t transferId) override;
  void beginBatch() override;
  void endBatch() override;
  Range range() const override;
  std::optional<RemoteBuffer> offer(uint64_t id, MemoryView view) override;
  void withdraw(uint64_t id) override {
    offered_.withdraw(id);
  }
  Result push(
      uint64_t id,
      RemoteBuffer target,
      MemoryView source,
      uint64_t sequence) override;
  bool poll(ConnectionEvents& events, Status& broken, int most) override;
  void endPulls() override;
  void peerClosed() override;
  When replaceable() const override {
    return When::kBroken;
  }
  void sever() override;
  bool drained() const override;
  bool allSent() override;
  std::vector<SentMessage> unconfirmed() const override;
  bool close(bool atOnce) override;

 private:
  bool postFlush();
  // Returns the rail for messages and pushes: a single rail keeps the
  // immediates in order.
  Rail& first() {
    return *rails_.front();
  }
  const Rail& first() const {
    return *rails_.front();
  }
  void keepRails(uint32_t numbers);
  std::vector<NicPtr> nics() const;
  size_t meritOf(size_t lanes) const;
  RailMemory::Regions registered(MemoryView view) const;
  void postBulk();
  void breakWith(const Rail& rail, const std::string& what);

  // rdma_messages.cpp defines the functions from pollRail() to
  // giveBackReceives().
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

  // rdma_push.cpp defines the functions from onPushed() to
  // reportFailedPushes().
  void
  onPushed(uint32_t number, const Status& status, ConnectionEvents& events);
  void onLanded(uint32_t immediate, size_t bytes, ConnectionEvents& events);
  void losePushes(uint32_t first);
  void reportFailedPushes(ConnectionEvents& events);

  struct Pushing {
    uint32_t number = 0;
    uint64_t id = 0;
    MemoryRegionPtr region; // of the memory being read
    bool over = false; // failed, but not reported yet
  };

  const std::unique_ptr<RingMemory> memory_;
  Rails rails_; // at least one
  RailMemory regions_;
  Bulk bulk_;
  const FindRegistrar findRegistrar_;
  RingProducer out_;
  RingConsumer in_;
  // Deadline for the remaining rails, set once the first greeting has passed.
  TimePoint verifyBy_ = never();
  // Whether reach() has given keys to the peer, so that the peer may read and
  // write our memory.
  bool reached_ = false;
  // Whether the peer can receive: always at the initiator, and at the acceptor
  // after the first immediate received.
  bool peerReady_ = false;
  bool flushAsked_ = false; // allSent() waits for a flush
  bool closing_ = false; // close() has posted the last request
  // Whether the connection is broken, and every message received before has
  // been handled.
  bool flushed_ = false;
  // Whether failures may be reported: the owner knows that the connection is
  // broken.
  bool givenUp_ = false;
  Status broken_;
  static constexpr int kPollBatch = 32;
  // Completions taken by the current poll. A member, because clearing the array
  // in each poll would cost time.
  std::array<ibv_wc, kPollBatch> polled_{};
  std::map<uint64_t, RailMemory::Regions> exposed_;
  OfferedMemory offered_;
  std::deque<Pushing> pushing_; // oldest first: the order of completion
  uint32_t nextPush_ = 1;
};

} // namespace dlslime::rdma
