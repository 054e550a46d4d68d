#pragma once

#include <cstdint>

#include "core/memory.h"
#include "rdma/queue_pair.h"

namespace dlslime::rdma {

// What one end of a connection tells the other before they connect.
struct EndAddress {
  QueuePairAddress pair;
  uint64_t ring = 0; // address of its eager ring
  uint32_t ringKey = 0;

  Bytes encode() const;
  static EndAddress decode(ByteSpan bytes); // throws Error
};

} // namespace dlslime::rdma
