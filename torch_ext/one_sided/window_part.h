#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "engine/one_sided/region.h"

namespace dlslime {

// What a rank tells the others of its tensor in a window.
struct WindowPart {
  // Of a contiguous tensor, which is this region.
  WindowPart(RegionHandle handle, const at::Tensor& tensor);
  // Throws Error{kTransportFailed}: it is no such thing.
  explicit WindowPart(ByteSpan encoded);

  Bytes encoded() const;
  bool mappable() const {
    return !memory.empty();
  }
  // The tensor, as memory of this process. `pid`: of its owner, on this host.
  // Throws Error: it can't be mapped, and why.
  at::Tensor map(uint32_t pid) const;

  RegionHandle region;
  at::ScalarType dtype;
  std::vector<int64_t> sizes;
  Bytes memory; // SharedMemory::describe(); empty: it is in no such memory
  uint64_t offset = 0; // there
};

} // namespace dlslime
