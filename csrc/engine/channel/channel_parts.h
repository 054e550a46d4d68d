#pragma once

#include <new>

#include "base/log.h"
#include "engine/one_sided/rma_initiator.h"
#include "engine/one_sided/rma_target.h"
#include "engine/progress/engine_mutex.h"
#include "engine/two_sided/inbound.h"
#include "engine/two_sided/outbound.h"
#include "engine/two_sided/sequencer.h"

namespace dlslime {

// Calls `tell`, which may be repeated, up to three times for want of memory: an
// operation not told of a failure would wait for ever.
template <typename Tell>
void insist(const Tell& tell) REQUIRES(kEngineLock) {
  constexpr int kTries = 3;
  for (int i = 1; i <= kTries; ++i) {
    try {
      tell();
      return;
    } catch (const std::bad_alloc&) {
      if (i == kTries) {
        logWithoutMemory("telling that a connection has failed");
      }
    }
  }
}

// Both halves of send and receive and of transfers over a channel. They outlive
// the channel's connections. Under the engine's lock.
struct ChannelParts {
  // What all parts use.
  struct Shared {
    Connection& connection;
    PeerGpus& gpus;
    Completions& completions;
    RegionTable& regions;
    Sequencer& sequencer;
  };
  ChannelParts(
      const Shared& shared,
      const Outbound::Limits& limits,
      const PeerIdentity& peer,
      TransferFinisher::SendNote sendNote);

  Outbound out;
  Inbound in;
  RmaInitiator initiator;
  RmaTarget target;

  // Sends what waits for room. Queued messages go first; then three parts take
  // turns to be next, because each may use up all room of the connection.
  bool flush() REQUIRES(kEngineLock);
  // Returns whether no operation of this end is under way.
  bool idle() const REQUIRES(kEngineLock) {
    return out.idle() && in.idle() && initiator.idle();
  }
  bool working() const REQUIRES(kEngineLock) {
    return !out.handedOver() || !idle() || !target.idle();
  }
  bool has(const OperationHolder* holder) const REQUIRES(kEngineLock) {
    return holder == &out || in.has(holder) || holder == &initiator;
  }
  // True if the region is lent to the peer.
  bool lends(const Region& region) const REQUIRES(kEngineLock) {
    return target.lent(region.handle().id) != nullptr;
  }
  // Adds the ids of the allocations of our GPUs that the peer may access at any
  // time.
  void addSharedInUse(std::set<uint64_t>& ids) REQUIRES(kEngineLock) {
    out.addShownInUse(ids);
    target.addShownInUse(ids);
  }
  // Goes on after the channel's registrar has registered a region, or has
  // failed to.
  void onRegistered(const RegionPtr& region, const Status& status)
      REQUIRES(kEngineLock) {
    initiator.onRegistered(*region, status);
    target.onRegistered(region, status);
  }
  // The following lead through the replacement of the connection.
  void sever() REQUIRES(kEngineLock);
  void detach(std::vector<SentMessage> unconfirmed) REQUIRES(kEngineLock);
  [[nodiscard]] Status resume(Connection& connection, uint64_t peerLast)
      REQUIRES(kEngineLock);
  // Ends all operations with `why`.
  void fail(const Status& why) REQUIRES(kEngineLock);

 private:
  int first_ = 0; // the part that comes first in the next flush()
};

} // namespace dlslime
