#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/memory/fault.h"
#include "base/seeded_hash.h"
#include "interface/operation.h"

namespace dlslime {

// A message that came before the receive it belongs to.
struct Arrival {
  int source = 0;
  uint32_t tag = 0;
  uint64_t length = 0; // bytes of the whole message
  void* channel = nullptr; // the PeerChannel it came by
  bool announced = false; // false: `data` is the message
  uint64_t id = 0; // the sender's number for it
  RemoteBuffer remote; // announced: where the sender has it, for
  uint32_t generation = 0; // this connection of the channel
  std::unique_ptr<std::byte[]> data;
  Fault fault = Fault::kNone; // else why the message is lost
  uint64_t credit = 0; // what its sender gets back once it is taken
  uint64_t order = 0; // of arrival in the group; set by the Matcher
};

// Decides which receive gets which message in one group: the n-th message of
// a (source, tag) meets the n-th receive of it; a receive from any source
// takes the oldest message of its tag; a message goes to the oldest receive
// that accepts it, directed or not. Pure bookkeeping, under the engine's lock.
class Matcher {
 public:
  explicit Matcher(int size) : size_(size) {}

  // The receive that this message belongs to, taken out; null if there is
  // none yet: then addArrival().
  OperationPtr takeReceive(int source, uint32_t tag);
  // The same, left in.
  const Operation* peekReceive(int source, uint32_t tag);
  void addArrival(Arrival arrival);

  // The message that this receive gets, taken out; none yet: addReceive().
  std::optional<Arrival> takeArrival(const Operation& receive);
  void addReceive(OperationPtr receive);

  // The receive that the next message of this source and tag will get, if it
  // is certain by now; stays here. Null: there is none, or a receive from any
  // source may get that message or leave it.
  OperationPtr nextReceive(int source, uint32_t tag);

  bool removeReceive(Operation& receive);
  // The announced message `id` of that channel, if it is still here.
  bool
  removeArrival(int source, uint32_t tag, const void* channel, uint64_t id);
  // The same, to change it; null: it is not here.
  Arrival*
  findArrival(int source, uint32_t tag, const void* channel, uint64_t id);
  // Drops announced messages of a channel that is gone.
  void removeAnnounced(const void* channel);

  // Directed receives from `source`; all receives from any source; both leave
  // the matcher.
  OperationQueue takeReceivesFrom(int source);
  OperationQueue takeAnySource();
  // All arrivals, for a group that ends.
  std::vector<Arrival> takeArrivals();

  std::vector<OperationPtr> posted() const;
  size_t arrivals() const {
    return arrivalCount_;
  }
  // Of messages that are here and wait for their receives.
  uint64_t unreadBytes() const {
    return unreadBytes_;
  }

 private:
  // Both queues of one (source, tag). At most one of them is non-empty, if no
  // receive from any source is posted.
  struct Slot {
    OperationQueue receives;
    std::list<Arrival> arrivals;
  };
  using Key = uint64_t;
  static Key keyOf(int source, uint32_t tag) {
    return (static_cast<Key>(static_cast<uint32_t>(source)) << 32) | tag;
  }
  struct Hash {
    size_t operator()(Key key) const {
      return seededHash(key);
    }
  };
  OperationQueue* queueFor(int source, uint32_t tag);
  Slot& slotOf(int source, uint32_t tag);
  Slot* findSlot(int source, uint32_t tag);
  std::optional<Arrival> takeFirst(Slot& slot);
  using Id = std::pair<const void*, uint64_t>; // of a channel's announcement
  static Id idOf(const Arrival& arrival) {
    return {arrival.channel, arrival.id};
  }
  void forget(const Arrival& arrival);
  Slot* oldestArrival(uint32_t tag);
  void sweep();

  const int size_;
  std::unordered_map<Key, Slot, Hash> slots_;
  Key lastKey_ = 0; // the slot of the last look-up, most often the next one's
  Slot* lastSlot_ = nullptr;
  std::unordered_map<uint32_t, OperationQueue> anySource_;
  // Peers choose the ids, so that a table of hashes could be made slow.
  std::map<Id, std::list<Arrival>::iterator> announced_;
  size_t anyCount_ = 0;
  size_t arrivalCount_ = 0;
  uint64_t unreadBytes_ = 0;
  uint64_t nextOrder_ = 1;
};

} // namespace dlslime
