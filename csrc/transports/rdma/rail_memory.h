#pragma once

#include <array>
#include <map>
#include <memory>
#include <vector>

#include "interface/transport.h"
#include "transports/rdma/rail.h"

namespace dlslime::rdma {

// Transfers from here on go by all rails, and are registered with all NICs:
// those that are too large to be pushed.
constexpr size_t kLeastStriped = 1024 * 1024 + 1;
// Smaller ones are copied into the ring sooner than the receiver has told where
// it wants them.
constexpr size_t kLeastPushed = 32 * 1024;

// What enrolling makes of memory: its registrations with some NICs.
struct EnrolledMemory {
  std::map<const Nic*, MemoryRegionPtr> regions;
};

// A tensor's memory, registered with the NICs of one connection.
class RailMemory {
 public:
  // By the number of the NIC; null: not with this one.
  using Regions = std::array<MemoryRegionPtr, RemoteBuffer::kMostKeys>;

  // The NICs of these rails, of which the first one matters most.
  void use(const std::vector<std::unique_ptr<Rail>>& rails);
  // Registered with the first NIC at least; of a GPU only where that can be.
  // Throws Error.
  Regions acquire(MemoryView view) const;
  // The same, but memory which is so small that copying it costs less than
  // registering it only if it is registered by chance; else all are null.
  Regions worthwhile(MemoryView view) const;
  MemoryRegionPtr findFirst(MemoryView view) const;
  // What the connection's NICs have of it.
  Regions of(const EnrolledMemory& memory) const;
  const MemoryRegionPtr& first(const Regions& regions) const {
    return regions[nics_.front().number];
  }
  static RemoteBuffer remote(const Regions& regions, MemoryView view);

 private:
  struct Numbered {
    uint8_t number;
    NicPtr nic;
  };
  std::vector<Numbered> nics_;
};

// Prepares memory for several NICs.
class RailRegistrar final : public MemoryRegistrar {
 public:
  explicit RailRegistrar(std::vector<NicPtr> nics) : nics_(std::move(nics)) {}
  std::shared_ptr<const void> prepare(MemoryView view) override;
  std::shared_ptr<const void> registerRegion(MemoryView view) override;
  MemoryUse memoryUse() override;
  void trim() override;
  void dropFreed() override;
  const std::vector<NicPtr>& nics() const {
    return nics_;
  }

 private:
  const std::vector<NicPtr> nics_;
};

} // namespace dlslime::rdma
