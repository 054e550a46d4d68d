#pragma once

#include <cstddef>
#include <memory>

#include "transports/rdma/rail/eager_ring.h"

namespace dlslime::rdma {

constexpr size_t kScratchBytes = 4096; // largest packet of InfiniBand

// Memory of a connection shared with the NICs: the ring filled by the peer, the
// mirror from which our messages are written to the peer's ring, and behind the
// mirror the scratch bytes, which may be overwritten at any time.
class RingMemory {
 public:
  RingMemory();

  std::byte* ring() const {
    return memory_.get();
  }
  std::byte* mirror() const {
    return memory_.get() + kRingBytes;
  }
  std::byte* scratch() const {
    return memory_.get() + 2 * kRingBytes;
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  const std::unique_ptr<std::byte, Free> memory_;
};

} // namespace dlslime::rdma
