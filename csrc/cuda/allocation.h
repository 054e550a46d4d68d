#pragma once

#include "cuda/driver.h"

namespace dlslime::cuda {

// What the driver knows of the memory at an address. torch cuts its tensors out
// of large allocations; sharing and registering is about those.
struct Allocation {
  DevicePointer base = 0;
  size_t size = 0;
  // Another allocation has another one, at the same address, too.
  uint64_t bufferId = 0;
  Device device = 0;
  bool legacyIpc = false; // cuIpcGetMemHandle works
  bool gpuDirect = false; // a NIC may get at it

  bool holds(DevicePointer pointer, size_t bytes) const {
    return base <= pointer && bytes <= size && pointer - base <= size - bytes;
  }
};

// Throws Error{kInvalidArgument}: it is not memory of a GPU.
Allocation allocationOf(const Driver& driver, DevicePointer pointer);

} // namespace dlslime::cuda
