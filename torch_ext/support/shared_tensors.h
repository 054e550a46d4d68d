#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <optional>

#include "base/memory/shared_memory.h"
#include "interface/memory.h"

namespace dlslime {

// A tensor of one dimension, of zeros, in memory that other processes of this
// host can map; forked children share it, too. On other devices an ordinary
// one: memory of GPUs is shared as it is. Throws ValueError: not a number of
// elements; DistBackendError: in a forked child, no memory.
at::Tensor allocateShared(int64_t count, const at::TensorOptions& options);

// What allocateShared() has made, and where in it these bytes are.
struct SharedPlace {
  std::shared_ptr<const SharedMemory> memory;
  uint64_t offset = 0;
};
// None: they are elsewhere. Any thread.
std::optional<SharedPlace> sharedPlaceOf(const MemoryView& view);

} // namespace dlslime
