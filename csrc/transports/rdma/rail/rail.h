#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "transports/rdma/rail/queue_pair.h"
#include "transports/rdma/rail/ring_memory.h"
#include "transports/rdma/rail/send_queue.h"

namespace dlslime::rdma {

// One of a connection's queue pairs, with its NIC, completion queue and
// registrations of the rings.
struct Rail {
  // `number` names the rail at both ends; `nicNumber` names the NIC at this
  // end. Throws Error.
  Rail(
      uint8_t number,
      uint8_t nicNumber,
      NicPtr nic,
      CompletionQueuePtr completions,
      const RingMemory& memory,
      const RdmaConfig& config);

  // Returns the queue depths for the NIC: all receives required by the ring,
  // and as many sends as fit. Throws Error{kUnavailable} if the NIC's queues
  // are too small.
  static QueueDepths depthsOn(const Nic& nic);
  // Returns the size of the completion queue: room for every request of both
  // queues.
  static int mostCompletions(const Nic& nic);
  // Returns whether the NIC has reported a loss since the rail was made.
  bool lost() const {
    return nic->losses() != losses;
  }

  const uint8_t number;
  const uint8_t nicNumber; // index in RemoteBuffer::keys
  const NicPtr nic;
  const uint32_t losses; // nic->losses() when the rail was made
  const uint64_t bitsPerSecond; // copied, since the NIC's value may change
  const CompletionQueuePtr completions;
  const MemoryRegion ring; // written by the peer
  const MemoryRegion mirror; // source of our writes; includes the scratch bytes
  std::byte* const scratch; // target of reads whose data is ignored
  const QueueDepths depths;
  QueuePair pair;
  SendQueue queue;
  uint8_t peerNicNumber = 0;
  uint64_t peerRing = 0; // address of the peer's ring
  uint32_t peerRingKey = 0;
  uint32_t takenReceives = 0; // not posted again yet
  // At the initiator: whether the greeting has passed.
  bool greeted = false;
  // Why the greeting has failed, or empty.
  std::string problem;
};

} // namespace dlslime::rdma
