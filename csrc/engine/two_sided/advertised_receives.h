#pragma once

#include <algorithm>

#include "base/slab.h"
#include "engine/progress/completions.h"
#include "engine/two_sided/outbound.h"
#include "interface/transport.h"

namespace dlslime {

class ReceivingGroup;
class Sequencer;

// How often memory is offered to a sender that need not wait for it, as what it
// sends is eager: an offer is a message, and for nothing where it comes too
// late. In a ping-pong every second one does, which costs more than the copies
// that the others save (under a user-mode kernel 311 us in place of 294 for 64
// KiB). So ever fewer are made while they are of no use, and more again when
// they are.
class AdvertiseThrottle {
 public:
  bool due() {
    since_ = (since_ + 1) % rarity_;
    return since_ == 0;
  }
  void note(bool used) {
    rarity_ = used ? std::max(rarity_ / 2, 1) : std::min(rarity_ * 2, kMost);
  }

 private:
  static constexpr int kMost = 16;
  int rarity_ = 1, since_ = 0;
};

// Receives whose memory one peer has been offered for its next message of
// their tag: the receiver's half of pushing (docs/protocol.md, "Push"). They
// stay in the matcher; their `holder` is set and `transferId` is the offer's
// id. Under the engine's lock.
class AdvertisedReceives {
 public:
  // A push that has come, after it was matched with its offer.
  struct Landed {
    OperationPtr receive;
    bool retracted = false;
  };

  AdvertisedReceives(
      Outbound& out,
      Completions& completions,
      const Sequencer& sequencer)
      : out_(out), completions_(completions), sequencer_(sequencer) {}

  // Offers the memory of `receive`, the next one for its source and tag, if
  // the route can be offered it.
  void offer(ReceivingGroup& group, const OperationPtr& receive, void* holder);
  // Its message has come another way: the offer has ended by that.
  void miss(Operation& receive);
  // The receive ends with `why`. Its memory is kept until the peer says that
  // it has forgotten the offer.
  void retract(const OperationPtr& receive, const Status& why);
  void onRetracted(uint64_t id);
  // The header of a message that has been pushed into offer `id`; nothing:
  // there is no such offer.
  std::optional<MessageHeader> headerOf(uint64_t id);
  Landed land(uint64_t id);
  // The connection is broken, and nothing is written any more.
  void fail();
  // The same, if another will take its place: what has been written, and waits
  // for its turn, still counts.
  void detach();
  void resume(Connection& connection) {
    connection_ = &connection;
  }
  bool idle() const {
    return retracted_ == 0;
  }

 private:
  struct Offer {
    OperationPtr receive; // null: retracted, but its message has come
    uint32_t remoteGroup = 0; // the peer's id of the group
    uint32_t group = 0; // ours
    bool retracted = false;
    bool written = false;
  };
  bool mayBeEager(const Operation& receive) const;
  void close(Operation& receive);
  void forget(uint64_t id);
  void drop(uint64_t id);

  Connection* connection_ = nullptr; // null: being replaced
  Outbound& out_;
  Completions& completions_;
  const Sequencer& sequencer_;
  Slab<Offer> offers_;
  size_t retracted_ = 0; // of the offers
  AdvertiseThrottle pace_;
};

} // namespace dlslime
