#pragma once

#include "base/bytes.h"
#include "base/memory/fault.h"

namespace dlslime {

// Copies from and to memory that may fault. The kernel copies between the
// memory and a scratch file of the calling thread (a memfd): 0.2 us for 8
// bytes, 3 us for 64 KiB. A thread without a descriptor for a scratch file
// copies by process_vm_readv of its own process, forbidden by many containers.

struct GuardedBytes {
  ByteSpan bytes; // valid until the thread's next guarded copy
  Fault fault = Fault::kNone;
};
GuardedBytes readGuarded(const std::byte* from, size_t size);

// Writes `bytes` to `to`; some may have been written before a fault.
Fault writeGuarded(std::byte* to, ByteSpan bytes);

// Copies many small pieces, in order, to contiguous memory at `to`, which must
// not fault.
Fault gatherGuarded(std::span<const ByteSpan> pieces, std::byte* to);
// Copies contiguous `bytes`, which must not fault, to many small places, in
// order.
Fault scatterGuarded(
    ByteSpan bytes,
    std::span<const std::span<std::byte>> places);

// Faults of a moveGuarded().
struct GuardedMove {
  Fault ofSource = Fault::kNone;
  Fault ofDestination = Fault::kNone;
};
// Copies like memmove: source and destination may overlap.
GuardedMove moveGuarded(std::byte* to, const std::byte* from, size_t size);
// Copies the first of many small pieces by two calls for all. Returns the
// number of pieces copied; 0 if there are fewer than two small ones in front,
// or if memory has faulted: moveGuarded() of the first piece then goes on, or
// tells which end faults.
struct GuardedPiece {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  size_t size = 0;
};
size_t moveGuardedTogether(std::span<const GuardedPiece> pieces);

} // namespace dlslime
