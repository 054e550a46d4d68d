#pragma once

#include <cstdint>
#include <vector>

#include "interface/memory.h"
#include "transports/rdma/rail/queue_pair.h"

namespace dlslime::rdma {

// What an end of a connection tells the peer before they connect.
struct EndAddress {
  // Address of a rail. The initiator numbers the rails, and the acceptor
  // answers with the connected rails, under the initiator's numbers.
  struct RailAddress {
    uint8_t number = 0;
    // Index of the NIC's key in RemoteBuffer::keys.
    uint8_t nicNumber = 0;
    QueuePairAddress pair;
    uint32_t ringKey = 0;
  };
  static constexpr size_t kMostRails = 8;

  uint64_t ring = 0; // address of the eager ring
  std::vector<RailAddress> rails; // at least one, sorted by number

  Bytes encode() const;
  static EndAddress decode(ByteSpan bytes); // throws Error
};

} // namespace dlslime::rdma
