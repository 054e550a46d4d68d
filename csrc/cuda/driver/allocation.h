#pragma once

#include <vector>

#include "cuda/driver/gpu.h"

namespace dlslime::cuda {

// What the driver knows of the memory at an address. torch cuts its tensors out
// of large allocations; sharing and registering is about those.
struct Allocation {
  DevicePointer base = 0;
  size_t size = 0;
  // Another allocation has another one, at the same address, too.
  uint64_t bufferId = 0;
  Device device = 0;
  // cuIpcGetMemHandle works: it was made by cudaMalloc. Else it may have been
  // mapped into addresses that go on with other such memory (cuMemMap).
  bool legacyIpc = false;
  unsigned handleTypes = 0; // as which mapped memory can be exported, ored
  bool gpuDirect = false; // a NIC may get at it

  DevicePointer end() const {
    return base + size;
  }
  bool holds(DevicePointer pointer, size_t bytes) const {
    return base <= pointer && bytes <= size && pointer - base <= size - bytes;
  }
};

// Throws Error{kInvalidArgument}: it is not memory of a GPU. Of mapped memory
// the extent is that of the addresses which were reserved, mapped or not.
Allocation allocationOf(const Driver& driver, DevicePointer pointer);
// As above, but with the extent of what is mapped there.
Allocation mappedAt(const Gpu& gpu, DevicePointer pointer);
// Those that these bytes are in, one behind the other. Throws
// Error{kInvalidArgument}: not all of them are in any.
std::vector<Allocation>
allocationsOf(const Gpu& gpu, DevicePointer pointer, size_t bytes);

} // namespace dlslime::cuda
