#pragma once

#include <vector>

#include "engine/gpu/peer_gpus.h"
#include "engine/progress/completions.h"
#include "engine/progress/engine_mutex.h"
#include "engine/two_sided/advertised_receives.h"
#include "engine/two_sided/matcher.h"
#include "engine/two_sided/outbound.h"
#include "engine/two_sided/receive_copies.h"
#include "engine/two_sided/receive_credit.h"
#include "engine/two_sided/rendezvous_receives.h"
#include "interface/transport.h"

namespace dlslime {

class ReceivingGroup;

// Messages from a peer to this process: the receiver's half of the protocol
// (docs/protocol.md, "Two-sided messages"). Gives each message to the matching
// receive: eager messages at once, messages of an Rts by RendezvousReceives,
// pushed messages by AdvertisedReceives. Under the engine's lock.
class Inbound {
 public:
  Inbound(
      Connection& connection,
      Outbound& out,
      PeerGpus& gpus,
      Completions& completions,
      const Sequencer& sequencer,
      const Outbound::Limits& limits);

  // The handlers below take messages of a group joined by the peer. A null
  // `group` is gone, of which the sender of an Rts is told. Not ok: the peer
  // has broken the rules.
  Status onEager(
      ReceivingGroup* group,
      const wire::Eager& eager,
      uint64_t sequence,
      ByteSpan payload) REQUIRES(kEngineLock);
  Status onRts(ReceivingGroup* group, const wire::Rts& rts)
      REQUIRES(kEngineLock);
  void onRevoke(ReceivingGroup* group, const wire::Revoke& revoke)
      REQUIRES(kEngineLock);
  void onMoved(ReceivingGroup* group, const wire::Moved& moved)
      REQUIRES(kEngineLock);
  // False: the peer has broken the rules.
  [[nodiscard]] bool onPushed(
      ReceivingGroup* group,
      const wire::Pushed& pushed,
      uint64_t sequence) REQUIRES(kEngineLock);

  RendezvousReceives& rendezvous() REQUIRES(kEngineLock) {
    return rendezvous_;
  }
  AdvertisedReceives& advertised() REQUIRES(kEngineLock) {
    return advertised_;
  }
  bool has(const OperationHolder* holder) const REQUIRES(kEngineLock) {
    return holder == &rendezvous_ || holder == &advertised_;
  }

  // True if the route can write into advertised memory.
  bool mayBePushed() const REQUIRES(kEngineLock) {
    return mayBePushed_;
  }
  // Gives an arrival from this peer to the matching receive.
  void deliver(ReceivingGroup& group, OperationPtr receive, Arrival arrival)
      REQUIRES(kEngineLock);
  // Drops an arrival that no receive of the group will match any more.
  void discard(const Arrival& arrival) REQUIRES(kEngineLock);

  // Ends receives under way, and offers, because the connection has failed.
  void fail(const Status& why) REQUIRES(kEngineLock);
  bool idle() const REQUIRES(kEngineLock) {
    return rendezvous_.idle() && advertised_.idle();
  }
  // A replacement of the connection takes sever(), then detach(), after which
  // the old connection is not used, then resume().
  void sever() REQUIRES(kEngineLock);
  void detach() REQUIRES(kEngineLock);
  void resume(Connection& connection) REQUIRES(kEngineLock);

 private:
  OperationPtr takeReceive(ReceivingGroup& group, int source, uint32_t tag)
      REQUIRES(kEngineLock);
  void match(ReceivingGroup& group, Arrival arrival) REQUIRES(kEngineLock);
  void passOn(
      ReceivingGroup& group,
      const wire::Pushed& pushed,
      uint64_t sequence,
      OperationPtr receive) REQUIRES(kEngineLock);
  void refuseTooLong(
      ReceivingGroup& group,
      OperationPtr receive,
      const Arrival& arrival) REQUIRES(kEngineLock);

  Outbound& out_;
  Completions& completions_;
  ReceiveCopies copies_;
  ReceiveCredit credit_;
  RendezvousReceives rendezvous_;
  AdvertisedReceives advertised_;
  bool mayBePushed_ = false;
};

} // namespace dlslime
