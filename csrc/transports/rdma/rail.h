#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "transports/rdma/queue_pair.h"
#include "transports/rdma/ring_memory.h"
#include "transports/rdma/send_queue.h"

namespace dlslime::rdma {

// One of the queue pairs of a connection, on one of the NICs.
struct Rail {
  // `number` is what both ends call it, `nicNumber` is the NIC's at this end.
  // Throws Error.
  Rail(
      uint8_t number,
      uint8_t nicNumber,
      NicPtr nic,
      CompletionQueuePtr completions,
      const RingMemory& memory,
      const RdmaConfig& config);

  // What the NIC's queues take of what we would have: fewer sends, since any
  // number of them works. Throws Error{kUnavailable}: not even the receives
  // that the ring needs.
  static QueueDepths depthsOn(const Nic& nic);
  // Completions that fit: every request of both queues.
  static int mostCompletions(const Nic& nic);
  // The NIC says that nothing passes here any more.
  bool lost() const {
    return nic->losses() != losses;
  }

  const uint8_t number;
  const uint8_t nicNumber; // the key of memory is at this place
  const NicPtr nic;
  const uint32_t losses; // of the NIC before
  const uint64_t bitsPerSecond; // of the NIC now: it may be read again
  const CompletionQueuePtr completions;
  const MemoryRegion ring; // what the peer writes into
  const MemoryRegion mirror; // what we write from, and scratch
  std::byte* const scratch; // for what is read in vain
  const QueueDepths depths;
  QueuePair pair;
  SendQueue queue;
  uint8_t peerNicNumber = 0;
  uint64_t peerRing = 0; // address
  uint32_t peerRingKey = 0;
  uint32_t takenReceives = 0; // to be posted again
  bool greeted = false; // at the initiator: messages pass
  std::string problem; // ... or why not
};

} // namespace dlslime::rdma
