#pragma once

#include <cstddef>
#include <memory>

#include "rdma/eager_ring.h"
#include "rdma/handles.h"

namespace dlslime::rdma {

// Memory of one connection that NICs read and write: the ring that the peer
// fills, and the mirror that our messages to the peer's ring are sent from.
class RingMemory {
 public:
  explicit RingMemory(const ProtectionDomainPtr& domain);

  std::byte* ring() const {
    return memory_.get();
  }
  std::byte* mirror() const {
    return memory_.get() + kRingBytes;
  }
  const MemoryRegion& region() const {
    return *region_;
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  const std::unique_ptr<std::byte, Free> memory_;
  const std::unique_ptr<MemoryRegion> region_;
};

} // namespace dlslime::rdma
