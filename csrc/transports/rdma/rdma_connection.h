#pragma once

#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "interface/transport.h"
#include "transports/rdma/bulk_requests.h"
#include "transports/rdma/eager_messages.h"
#include "transports/rdma/end_address.h"
#include "transports/rdma/greetings.h"
#include "transports/rdma/pushes.h"

namespace dlslime::rdma {

// A reliable connection between two processes over one or several rails
// (docs/protocol.md, "RDMA"). Messages and pushes go over the first rail, bulk
// data over all rails. If a rail breaks, the whole connection breaks, and
// another connection takes its place. The handshake makes a connection in
// steps: address() for the peer, connect() with the peer's address, then the
// greetings.
class RdmaConnection final : public Connection, public ReplaceAbility {
 public:
  using Rails = RailSet::Rails;
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

  ConnectionInfo info() const override;
  bool hasRoom(size_t payload) override {
    return messages_.hasRoom(payload);
  }
  bool send(const MessageHeader& header, ByteSpan payload) override {
    return messages_.send(header, payload);
  }
  bool poll(ConnectionEvents& events, Status& broken, int most) override;
  void endPulls() override;
  void peerClosed() override;
  When replaceable() const override {
    return When::kBroken;
  }
  void sever() override;
  bool drained() const override;
  bool allSent() override;
  std::vector<SentMessage> unconfirmed() const override {
    return messages_.unconfirmed();
  }
  bool close(bool atOnce) override;

 private:
  void keepRails(uint32_t numbers);
  bool postFlush();
  int pollRail(Rail& rail, ConnectionEvents& events, int most);
  void
  onCompletion(Rail& rail, const ibv_wc& completion, ConnectionEvents& events);
  void onImmediate(const ibv_wc& completion, ConnectionEvents& events);
  void onRefused(const Rail& rail, SendQueue::Refused refused);

  const std::unique_ptr<RingMemory> memory_;
  RailSet rails_;
  RailMemory regions_;
  Bulk bulk_;
  BulkRequests requests_;
  EagerMessages messages_;
  Pushes pushes_;
  Greetings greetings_;
  const FindRegistrar findRegistrar_;
  bool flushAsked_ = false; // allSent() waits for a flush
  bool closing_ = false; // close() has posted the last request
  // Whether the connection is broken, and every message received before has
  // been handled.
  bool flushed_ = false;
  // Whether failures may be reported: the owner knows that the connection is
  // broken.
  bool givenUp_ = false;
  static constexpr int kPollBatch = 32;
  // Completions taken by the current poll. A member, because clearing the array
  // in each poll would cost time.
  std::array<ibv_wc, kPollBatch> polled_{};
};

} // namespace dlslime::rdma
