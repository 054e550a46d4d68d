#pragma once

#include <cstdint>
#include <vector>

#include "interface/memory.h"
#include "transports/rdma/queue_pair.h"

namespace dlslime::rdma {

// What one end of a connection tells the other before they connect.
struct EndAddress {
  // The end that begins numbers its queue pairs; the other one answers with
  // those that it has connected, under the same numbers.
  struct RailAddress {
    uint8_t number = 0;
    uint8_t nicNumber = 0; // RemoteBuffer::keys has its key at this place
    QueuePairAddress pair;
    uint32_t ringKey = 0;
  };
  static constexpr size_t kMostRails = 8;

  uint64_t ring = 0; // address of its eager ring
  std::vector<RailAddress> rails; // at least one, in the order of their numbers

  Bytes encode() const;
  static EndAddress decode(ByteSpan bytes); // throws Error
};

} // namespace dlslime::rdma
