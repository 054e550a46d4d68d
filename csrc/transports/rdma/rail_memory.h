#pragma once

#include <array>
#include <map>
#include <memory>
#include <vector>

#include "interface/transport.h"
#include "transports/rdma/rail/rail.h"

namespace dlslime::rdma {

// Smallest size of a message whose memory is registered with all NICs, so that
// all rails carry the message. Smaller messages may be pushed over the first
// rail.
constexpr size_t kLeastStriped = 1024 * 1024 + 1;
// Smallest size of a pushed message. Copying a smaller message into the ring is
// faster than waiting for the receiver's RTR.
constexpr size_t kLeastPushed = 32 * 1024;

// Registrations of a region with some of the NICs, made by registerRegion().
struct RegisteredRegion final : Registration {
  std::map<const Nic*, MemoryRegionPtr> regions;
};

// Finds or makes registrations of memory with the NICs of a connection.
class RailMemory {
 public:
  // Registrations by NIC number; null: not registered with the NIC.
  using Regions = std::array<MemoryRegionPtr, RemoteBuffer::kMostKeys>;

  // Takes the NICs of `rails`. The NIC of the first rail comes first, because
  // messages and pushes need that NIC.
  void use(const std::vector<std::unique_ptr<Rail>>& rails);
  // Registers the memory with the first NIC, and large memory with all NICs.
  // GPU memory gets null where registering is impossible. Throws Error if host
  // memory can't be registered with the first NIC.
  Regions acquire(MemoryView view) const;
  // Works as acquire(), but does not register memory that is cheaper to copy:
  // the result then has at most an existing registration with the first NIC.
  Regions worthwhile(MemoryView view) const;
  MemoryRegionPtr findFirst(MemoryView view) const;
  // Returns the registrations of `memory` with the NICs of the connection.
  Regions of(const RegisteredRegion& memory) const;
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
  RegistrationPtr prepare(MemoryView view) override;
  RegistrationPtr registerRegion(MemoryView view) override;
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
