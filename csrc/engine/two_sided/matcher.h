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
#include "engine/progress/engine_mutex.h"
#include "interface/operation.h"

namespace dlslime {

class Inbound;

// Message that has come before the matching receive.
struct Arrival {
  int source = 0;
  uint32_t tag = 0;
  uint64_t length = 0; // bytes of the whole message
  const Inbound* from = nullptr; // of the sending peer's channel
  bool announced = false; // by an Rts; false: `data` is the message
  // The sender's id of the Rts, or the sequence number of an eager or pushed
  // message.
  uint64_t id = 0;
  RemoteBuffer remote; // of an Rts: the sender's memory
  uint32_t generation = 0; // number of the connection that `remote` is for
  std::unique_ptr<std::byte[]> data;
  Fault fault = Fault::kNone; // why the message is lost, if it is
  uint64_t credit = 0; // eagerCost() to be returned once taken
  uint64_t order = 0; // order of arrival in the group, set by Matcher
};

// Decides which receive gets which message in a group. The n-th message of a
// (source, tag) meets the n-th receive of the (source, tag). A receive from any
// source takes the oldest message of the tag; a message goes to the oldest
// receive that accepts the message, directed or not. Pure bookkeeping, under
// the engine's lock.
class Matcher {
 public:
  explicit Matcher(int size) : size_(size) {}

  // Takes out the receive for a message. Null if none is posted: then the
  // caller calls addArrival().
  OperationPtr takeReceive(int source, uint32_t tag) REQUIRES(kEngineLock);
  // Returns the receive for a message without taking out the receive.
  const Operation* peekReceive(int source, uint32_t tag) REQUIRES(kEngineLock);
  void addArrival(Arrival arrival) REQUIRES(kEngineLock);

  // Takes out the message for a receive. Nothing if none has come: then the
  // caller calls addReceive().
  std::optional<Arrival> takeArrival(const Operation& receive)
      REQUIRES(kEngineLock);
  void addReceive(OperationPtr receive) REQUIRES(kEngineLock);

  // Returns the receive for the next message of the source and tag, if certain
  // by now, without taking out the receive. Null if none is posted, or if a
  // receive from any source makes the match uncertain.
  OperationPtr nextReceive(int source, uint32_t tag) REQUIRES(kEngineLock);

  bool removeReceive(Operation& receive) REQUIRES(kEngineLock);
  // Takes out the message of the Rts with the id. False: a receive has taken
  // the message.
  bool removeArrival(int source, uint32_t tag, const Inbound* from, uint64_t id)
      REQUIRES(kEngineLock);
  // Returns the message of the Rts with the id; null if a receive has taken it.
  Arrival*
  findArrival(int source, uint32_t tag, const Inbound* from, uint64_t id)
      REQUIRES(kEngineLock);
  // Drops the messages of all Rts from a peer that is gone.
  void removeAnnounced(const Inbound* from) REQUIRES(kEngineLock);

  // Takes out all directed receives from `source`.
  OperationQueue takeReceivesFrom(int source) REQUIRES(kEngineLock);
  // Takes out all receives from any source.
  OperationQueue takeAnySource() REQUIRES(kEngineLock);
  // Takes out all arrivals, for a group that ends.
  std::vector<Arrival> takeArrivals() REQUIRES(kEngineLock);

  std::vector<OperationPtr> posted() const REQUIRES(kEngineLock);
  size_t arrivals() const REQUIRES(kEngineLock) {
    return arrivalCount_;
  }
  // Bytes of arrivals without an Rts, each counted as 1 byte at least.
  uint64_t unreadBytes() const REQUIRES(kEngineLock) {
    return unreadBytes_;
  }

 private:
  // Both queues of a (source, tag). At most one is non-empty while no receive
  // from any source is posted.
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
  OperationQueue* queueFor(int source, uint32_t tag) REQUIRES(kEngineLock);
  Slot& slotOf(int source, uint32_t tag) REQUIRES(kEngineLock);
  Slot* findSlot(int source, uint32_t tag) REQUIRES(kEngineLock);
  std::optional<Arrival> takeFirst(Slot& slot) REQUIRES(kEngineLock);
  using Id = std::pair<const Inbound*, uint64_t>; // of an Rts
  static Id idOf(const Arrival& arrival) {
    return {arrival.from, arrival.id};
  }
  void forget(const Arrival& arrival) REQUIRES(kEngineLock);
  Slot* oldestArrival(uint32_t tag) REQUIRES(kEngineLock);
  void sweep() REQUIRES(kEngineLock);

  const int size_;
  std::unordered_map<Key, Slot, Hash> slots_;
  Key lastKey_ = 0; // of the last look-up, and most often of the next
  Slot* lastSlot_ = nullptr;
  std::unordered_map<uint32_t, OperationQueue> anySource_;
  // Arrivals by Rts. Not a hash table, which peers could make slow by their
  // choice of ids.
  std::map<Id, std::list<Arrival>::iterator> announced_;
  size_t anyCount_ = 0;
  size_t arrivalCount_ = 0;
  uint64_t unreadBytes_ = 0;
  uint64_t nextOrder_ = 1;
};

} // namespace dlslime
