#pragma once

#include "base/bytes.h"
#include "base/memory/fault.h"

namespace dlslime {

// Copies from and to memory that may fault. The kernel makes them, between it
// and a file in memory that this thread has for that: 0.2 us for 8 bytes, 3 us
// for 64 KiB. A thread that gets no descriptor for one copies with
// process_vm_readv of its own process, which many containers forbid.

struct GuardedBytes {
  ByteSpan bytes; // until this thread's next call of a function below
  Fault fault = Fault::kNone;
};
GuardedBytes readGuarded(const std::byte* from, size_t size);

// Some of it may have been written before the fault.
Fault writeGuarded(std::byte* to, ByteSpan bytes);

// Many small pieces, one after the other into `to`, and from `bytes` to there.
Fault gatherGuarded(std::span<const ByteSpan> pieces, std::byte* to);
Fault scatterGuarded(
    ByteSpan bytes,
    std::span<const std::span<std::byte>> places);

// As memmove: the two may overlap.
struct GuardedMove {
  Fault ofSource = Fault::kNone;
  Fault ofDestination = Fault::kNone;
};
GuardedMove moveGuarded(std::byte* to, const std::byte* from, size_t size);

} // namespace dlslime
