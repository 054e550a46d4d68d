#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <optional>

#include "base/memory/shared_memory.h"
#include "interface/memory.h"

namespace dlslime {

// Returns a one-dimensional tensor of zeros, in memory that processes of this
// host can map and forked children share. On a GPU, returns an ordinary
// uninitialised tensor: memory of GPUs is shared as it is. Throws ValueError
// for a bad number of elements, and DistBackendError in a forked child or
// without memory.
at::Tensor allocateShared(int64_t count, const at::TensorOptions& options);

// Memory made by allocateShared(), and the offset of some bytes in the memory.
struct SharedPlace {
  std::shared_ptr<const SharedMemory> memory;
  uint64_t offset = 0;
};
// Returns none if the bytes are in no memory made by allocateShared(). Any
// thread.
std::optional<SharedPlace> sharedPlaceOf(const MemoryView& view);

} // namespace dlslime
