#pragma once

#include "base/slab.h"
#include "engine/progress/completions.h"
#include "engine/progress/engine_mutex.h"
#include "engine/progress/pacing.h"
#include "engine/two_sided/outbound.h"
#include "interface/transport.h"

namespace dlslime {

class ReceivingGroup;
class Sequencer;

// Receives whose memory was offered to a peer for the next message of the tag:
// the receiver's half of pushing (docs/protocol.md, "Push"). Offered receives
// stay in the matcher, with `holder` set and with the id of the offer in
// `transferId`. Under the engine's lock.
class AdvertisedReceives final : public OperationHolder {
 public:
  // Receive of a pushed message; null if the offer is unknown.
  struct Landed {
    OperationPtr receive;
    bool retracted = false;
  };

  AdvertisedReceives(
      Outbound& out,
      Completions& completions,
      const Sequencer& sequencer)
      : out_(out), completions_(completions), sequencer_(sequencer) {}

  // Offers the memory of `receive`, the next receive of the source and tag, if
  // the route can push into the memory.
  void offer(ReceivingGroup& group, const OperationPtr& receive)
      REQUIRES(kEngineLock);
  // Ends the offer of a receive whose message has come without a push.
  void miss(Operation& receive) REQUIRES(kEngineLock);
  // Ends the receive with `why`. The memory is kept until the peer has
  // forgotten the offer.
  void cancel(const OperationPtr& receive, const Status& why)
      REQUIRES(kEngineLock) override;
  void onRetracted(const wire::Retracted& retracted) REQUIRES(kEngineLock);
  // Returns the message of `length` bytes pushed into offer `id`; nothing if
  // the offer is unknown.
  std::optional<wire::Pushed> pushedInto(uint64_t id, size_t length)
      REQUIRES(kEngineLock);
  Landed land(uint64_t id) REQUIRES(kEngineLock);
  // Drops all offers: the connection is broken, and nothing is written any
  // more.
  void fail() REQUIRES(kEngineLock);
  // Drops the offers of a connection to be replaced, except offers already
  // written by messages that wait for their turn.
  void detach() REQUIRES(kEngineLock);
  void resume(Connection& connection) REQUIRES(kEngineLock) {
    connection_ = &connection;
  }
  bool idle() const REQUIRES(kEngineLock) {
    return retracted_ == 0;
  }
  // Replaces the machine's throttle, for tests.
  void use(const AdvertiseThrottle& throttle) REQUIRES(kEngineLock) {
    throttle_ = throttle;
  }

 private:
  struct Offer {
    OperationPtr receive; // null: retracted, but the message has come
    uint32_t remoteGroup = 0; // the peer's id of the group
    uint32_t group = 0; // our id of the group
    bool retracted = false;
    bool written = false;
  };
  bool mayBeEager(const Operation& receive) const REQUIRES(kEngineLock);
  void close(Operation& receive) REQUIRES(kEngineLock);
  void forget(uint64_t id) REQUIRES(kEngineLock);
  void withdraw(uint64_t id) REQUIRES(kEngineLock);
  void drop(uint64_t id) REQUIRES(kEngineLock);

  Connection* connection_ = nullptr; // null: being replaced
  Outbound& out_;
  Completions& completions_;
  const Sequencer& sequencer_;
  Slab<Offer> offers_;
  size_t retracted_ = 0; // number of retracted offers
  AdvertiseThrottle throttle_{Pacing::ofMachine().adapts};
};

} // namespace dlslime
