#pragma once

#include <cstddef>
#include <memory>

#include "rdma/eager_ring.h"

namespace dlslime::rdma {

// Memory of one connection that NICs read and write: the ring that the peer
// fills, and the mirror that our messages to the peer's ring are sent from.
class RingMemory {
 public:
  RingMemory();

  std::byte* ring() const {
    return memory_.get();
  }
  std::byte* mirror() const {
    return memory_.get() + kRingBytes;
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  const std::unique_ptr<std::byte, Free> memory_;
};

} // namespace dlslime::rdma
