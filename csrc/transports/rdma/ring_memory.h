#pragma once

#include <cstddef>
#include <memory>

#include "transports/rdma/eager_ring.h"

namespace dlslime::rdma {

constexpr size_t kScratchBytes = 4096; // the largest packet of InfiniBand

// Memory of one connection that NICs read and write: the ring that the peer
// fills, the mirror that our messages to the peer's ring are sent from, and
// right behind that some bytes that may be overwritten at any time.
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
