#pragma once

#include <vector>

#include "base/slab.h"
#include "engine/progress/completions.h"
#include "engine/progress/engine_mutex.h"
#include "engine/two_sided/peer_advertisements.h"
#include "engine/two_sided/sequenced_output.h"

namespace dlslime {

// Sends that are written into receives advertised by the peer. Under the
// engine's lock.
class PushSends {
 public:
  PushSends(SequencedOutput& output, Completions& completions)
      : output_(output), completions_(completions) {}

  // Writes the message into memory offered by the receiver, if any. `eager` is
  // the header by which the message would go otherwise.
  PushAbility::Result tryPush(
      const OperationPtr& operation,
      const MessageHeader& eager) REQUIRES(kEngineLock);
  // Notes that a tensor message has gone out under the number: this ends the
  // offer for group and tag.
  void noteSent(const Operation& operation, uint64_t number)
      REQUIRES(kEngineLock) {
    offers_.noteSent(operation.groupKey, operation.tag(), number);
    offers_.drop(operation.groupKey, operation.tag());
  }
  void onRtr(const wire::Rtr& rtr) REQUIRES(kEngineLock) {
    offers_.offer(rtr, output_.next() - 1);
  }
  void onRetract(const wire::Retract& retract) REQUIRES(kEngineLock) {
    offers_.retract(retract);
  }
  void onPushed(uint64_t pushId, const Status& status) REQUIRES(kEngineLock);

  // Ends all offers, because they held for a connection that is gone.
  void dropOffers() REQUIRES(kEngineLock) {
    offers_.clear();
  }
  // Ends the pushes up to number `peerLast`, which the peer has seen, however
  // they ended here, and cancelled pushes. Gives each of the rest to
  // `announce(operation, rts, number)`: the offered memory is gone.
  template <typename Announce>
  void endAll(uint64_t peerLast, const Announce& announce)
      REQUIRES(kEngineLock) {
    for (const auto id : pushes_.ids()) {
      const auto& push = *pushes_.find(id);
      if (push.number <= peerLast) {
        completions_.finish(push.operation, {});
      } else if (!push.operation->cancelStatus.ok()) {
        output_.sendInPlace(wire::Nop{}, push.number);
        completions_.finish(push.operation, push.operation->cancelStatus);
      } else {
        announce(push.operation, push.rts, push.number);
      }
      pushes_.take(id);
    }
  }

  bool empty() const REQUIRES(kEngineLock) {
    return pushes_.size() == 0;
  }
  template <typename Visit>
  void forEach(const Visit& visit) const REQUIRES(kEngineLock) {
    for (const auto id : pushes_.ids()) {
      visit(pushes_.find(id)->operation);
    }
  }
  // Tells `tell` of each push, and `end` of each whose memory nothing reads any
  // more: the NIC may read the memory of the others until onPushed().
  template <typename Tell, typename End>
  void fail(const Tell& tell, const End& end) REQUIRES(kEngineLock) {
    for (const auto id : pushes_.ids()) {
      const auto& push = *pushes_.find(id);
      if (output_.connection() == nullptr || push.over) {
        end(push.operation);
        pushes_.take(id);
      } else {
        tell(push.operation);
      }
    }
    offers_.clear();
  }
  // Releases the memory of all pushes, after the connection was destroyed.
  void release() REQUIRES(kEngineLock);

 private:
  struct Push {
    OperationPtr operation;
    wire::Rts rts; // for announcing a lost push
    uint64_t number = 0; // of the message
    bool over = false; // failed with a connection being replaced
  };

  SequencedOutput& output_;
  Completions& completions_;
  PeerAdvertisements offers_;
  Slab<Push> pushes_;
};

// Returns the Rts that takes the place of an eager message, without id and
// memory.
wire::Rts rtsOf(const MessageHeader& eager);

} // namespace dlslime
