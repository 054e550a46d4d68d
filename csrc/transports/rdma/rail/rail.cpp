#include "transports/rdma/rail/rail.h"

#include <algorithm>
#include <string>

#include "transports/rdma/device/offered_memory.h"

namespace dlslime::rdma {

namespace {
// Receives beside a full ring of records: a push into every offered slot, a
// credit for each quarter of the ring, the initiator's greeting, and receives
// not posted again yet.
constexpr uint32_t kSpareReceives = 64 + OfferedMemory::kSlots;
constexpr uint32_t kReceives = kRingUnits + kSpareReceives;
constexpr uint32_t kSends = 512;
// Largest message sent inline: a single store to the NIC, without a DMA read of
// the mirror.
constexpr uint32_t kInlineBytes = 256;
// Least depth of the send queue. With fewer sends, a connection would mostly
// wait for completions.
constexpr uint32_t kLeastSends = 32;
} // namespace

QueueDepths Rail::depthsOn(const Nic& nic) {
  const auto& limits = nic.limits();
  constexpr uint32_t kLeastCompletions = kReceives + kLeastSends;
  if (limits.maxRequests < kReceives ||
      limits.maxCompletions < kLeastCompletions) {
    throw Error(
        ErrorCode::kUnavailable,
        nic.name() + ": its queues are too small: they take " +
            std::to_string(limits.maxRequests) + " requests (max_qp_wr) and " +
            std::to_string(limits.maxCompletions) +
            " completions (max_cqe), a connection needs " +
            std::to_string(kReceives) + " and " +
            std::to_string(kLeastCompletions) +
            "; leave it out by DLSLIME_NICS");
  }
  return {
      std::min({kSends, limits.maxRequests, limits.maxCompletions - kReceives}),
      kReceives,
      kInlineBytes};
}

int Rail::mostCompletions(const Nic& nic) {
  const auto depths = depthsOn(nic);
  return static_cast<int>(depths.sends + depths.receives);
}

Rail::Rail(
    uint8_t called,
    uint8_t nicCalled,
    NicPtr on,
    CompletionQueuePtr completionQueue,
    const RingMemory& memory,
    const RdmaConfig& config)
    : number(called),
      nicNumber(nicCalled),
      nic(std::move(on)),
      losses(nic->losses()),
      bitsPerSecond(nic->bitsPerSecond()),
      completions(std::move(completionQueue)),
      ring(nic->domain(), MemoryView{memory.ring(), kRingBytes}),
      mirror(
          nic->domain(),
          MemoryView{memory.mirror(), kRingBytes + kScratchBytes},
          MemoryRegion::OwnUse{}),
      scratch(memory.scratch()),
      depths(depthsOn(*nic)),
      pair(nic, completions, depths, config),
      queue(pair, depths.sends) {
  if (!pair.postReceives(depths.receives)) {
    throw Error(
        ErrorCode::kTransportFailed,
        "receives could not be posted on " + nic->name());
  }
}

} // namespace dlslime::rdma
