#pragma once

#include <vector>

#include "cuda/driver/gpu.h"

namespace dlslime::cuda {

// The driver's knowledge of the memory at an address. torch cuts tensors out of
// large allocations, but memory is shared and registered by allocation.
struct Allocation {
  DevicePointer base = 0;
  size_t size = 0;
  // Differs for each allocation, also for a later allocation at an equal
  // address.
  uint64_t bufferId = 0;
  Device device = 0;
  // Whether cuIpcGetMemHandle works, as for memory of cudaMalloc. Else the
  // memory may be mapped (cuMemMap), and further mapped memory may follow at
  // the next addresses.
  bool legacyIpc = false;
  unsigned handleTypes =
      0; // kinds of handles for exporting mapped memory, ored
  bool gpuDirect = false; // a NIC may access the memory

  DevicePointer end() const {
    return base + size;
  }
  bool holds(DevicePointer pointer, size_t bytes) const {
    return base <= pointer && bytes <= size && pointer - base <= size - bytes;
  }
};

// Returns the allocation at an address; for mapped memory, base and size are of
// all reserved addresses, mapped or not. Throws Error{kInvalidArgument} if the
// address is not of GPU memory.
Allocation allocationOf(const Driver& driver, DevicePointer pointer);
// Returns the allocation with the extent of the memory mapped at the address.
Allocation mappedAt(const Gpu& gpu, DevicePointer pointer);
// Returns the consecutive allocations holding the bytes. Throws
// Error{kInvalidArgument} if some bytes are in no allocation.
std::vector<Allocation>
allocationsOf(const Gpu& gpu, DevicePointer pointer, size_t bytes);

} // namespace dlslime::cuda
