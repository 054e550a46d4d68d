#include "rdma/rail.h"

#include "rdma/offered_memory.h"

namespace dlslime::rdma {

namespace {
// Beside a full ring of records: pushes into all that was offered, a credit
// for each quarter, the initiator's greeting, and receives that are not posted
// again yet.
constexpr uint32_t kSpareReceives = 64 + OfferedMemory::kSlots;
constexpr uint32_t kReceives = kRingUnits + kSpareReceives;
constexpr uint32_t kSends = 512;
// Small messages in one store to the NIC, without a fetch of the mirror.
constexpr uint32_t kInlineBytes = 256;
} // namespace

int Rail::mostCompletions() {
  return static_cast<int>(kSends + kReceives);
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
      ring(nic->domain(), memory.ring(), kRingBytes),
      mirror(nic->domain(), memory.mirror(), kRingBytes + kScratchBytes),
      scratch(memory.scratch()),
      pair(nic, completions, {kSends, kReceives, kInlineBytes}, config),
      queue(pair, kSends) {
  if (!pair.postReceives(kReceives)) {
    throw Error(
        ErrorCode::kTransportFailed,
        "receives could not be posted on " + nic->name());
  }
}

} // namespace dlslime::rdma
