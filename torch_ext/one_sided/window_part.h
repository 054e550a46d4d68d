#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "engine/engine.h"

namespace dlslime {

// Description of a rank's tensor in a window, sent to all ranks.
struct WindowPart {
  // `tensor` is contiguous, and covers exactly the region.
  WindowPart(RegionHandle handle, const at::Tensor& tensor);
  // Decodes a description. Throws Error if malformed.
  explicit WindowPart(ByteSpan encoded);

  Bytes encoded() const;
  bool mappable() const {
    return !memory.empty();
  }
  // Maps the tensor into this process. `pid` is the owner, on the same host.
  // Throws Error with the reason if the memory cannot be mapped.
  at::Tensor map(uint32_t pid) const;

  RegionHandle region;
  at::ScalarType dtype;
  std::vector<int64_t> sizes;
  Bytes memory; // SharedMemory::describe(); empty: not in shared memory
  uint64_t offset = 0; // of the tensor in `memory`, in bytes
};

} // namespace dlslime
