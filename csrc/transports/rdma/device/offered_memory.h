#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "interface/memory.h"
#include "transports/rdma/device/registration_cache.h"

namespace dlslime::rdma {

// Memory that the peer may write into, once for each offer, under slot numbers
// that fit into an immediate.
class OfferedMemory {
 public:
  // Number of slots. Each push takes one of the posted receives, so Rail posts
  // as many extra receives.
  static constexpr uint16_t kSlots = 256;

  OfferedMemory() {
    for (uint16_t slot = kSlots; slot > 0; --slot) {
      free_.push_back(static_cast<uint16_t>(slot - 1));
    }
  }
  // Returns nothing if all slots are in use.
  std::optional<RemoteBuffer>
  offer(uint64_t id, MemoryView view, MemoryRegionPtr region) {
    if (free_.empty()) {
      return std::nullopt;
    }
    const auto slot = free_.back();
    free_.pop_back();
    const auto key = region->remoteKey();
    slots_[slot] = {id, std::move(region)};
    slotOf_[id] = slot;
    return RemoteBuffer{reinterpret_cast<uint64_t>(view.data), {key}, slot};
  }
  void withdraw(uint64_t id) {
    const auto found = slotOf_.extract(id);
    if (!found.empty()) {
      slots_[found.mapped()] = {};
      free_.push_back(found.mapped());
    }
  }
  // Returns the id offered as `slot`, or 0.
  uint64_t idOf(uint16_t slot) const {
    return slot < kSlots ? slots_[slot].id : 0;
  }
  bool empty() const {
    return slotOf_.empty();
  }

 private:
  struct Slot {
    uint64_t id = 0;
    MemoryRegionPtr region;
  };
  std::array<Slot, kSlots> slots_;
  std::vector<uint16_t> free_;
  std::unordered_map<uint64_t, uint16_t> slotOf_;
};

} // namespace dlslime::rdma
