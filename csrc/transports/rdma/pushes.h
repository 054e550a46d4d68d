#pragma once

#include <deque>

#include "transports/rdma/device/offered_memory.h"
#include "transports/rdma/rail_memory.h"
#include "transports/rdma/rail_set.h"

namespace dlslime::rdma {

// Pushes over the first rail: messages written straight into the receiver's
// memory. Both ends: memory offered to the peer, and pushes to the peer.
class Pushes final : public PushAbility {
 public:
  Pushes(RailSet& rails, const RailMemory& memory)
      : rails_(rails), memory_(memory) {}

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

  // Ends the push with the number given at posting. A failed push is reported
  // by reportFailed().
  void
  onCompleted(uint32_t number, const Status& status, ConnectionEvents& events);
  // Handles an immediate of the peer that tells of a push of `bytes` bytes.
  void onLanded(uint32_t immediate, size_t bytes, ConnectionEvents& events);
  // Marks push `first` and all later pushes as failed, because the device
  // refused them. 0: none was refused.
  void lose(uint32_t first);
  void reportFailed(ConnectionEvents& events);

  // True if no push to the peer is posted.
  bool empty() const {
    return posted_.empty();
  }
  // True if the peer may push into memory of this process.
  bool offersMemory() const {
    return !offered_.empty();
  }

 private:
  struct Posted {
    uint32_t number = 0;
    uint64_t id = 0;
    MemoryRegionPtr region; // of the memory being read
    bool failed = false; // not reported yet
  };
  uint32_t nextNumber();

  RailSet& rails_;
  const RailMemory& memory_;
  OfferedMemory offered_;
  std::deque<Posted> posted_; // oldest first: the order of completion
  uint32_t lastNumber_ = 0;
};

} // namespace dlslime::rdma
