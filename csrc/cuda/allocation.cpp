#include "cuda/allocation.h"

#include <array>

namespace dlslime::cuda {

Allocation allocationOf(const Driver& driver, DevicePointer pointer) {
  Allocation found;
  unsigned type = 0, legacyIpc = 0, gpuDirect = 0;
  unsigned long long bufferId = 0;
  std::array attributes{
      PointerAttribute::kMemoryType,
      PointerAttribute::kDeviceOrdinal,
      PointerAttribute::kBufferId,
      PointerAttribute::kRangeStart,
      PointerAttribute::kRangeSize,
      PointerAttribute::kIsLegacyIpcCapable,
      PointerAttribute::kIsGpuDirectRdmaCapable};
  std::array<void*, attributes.size()> values{
      &type,
      &found.device,
      &bufferId,
      &found.base,
      &found.size,
      &legacyIpc,
      &gpuDirect};
  driver.check(
      driver.pointerGetAttributes(
          attributes.size(), attributes.data(), values.data(), pointer),
      "asking for the memory of a tensor");
  if (type != kDeviceMemory) {
    throw Error(
        ErrorCode::kInvalidArgument,
        "the address " + std::to_string(pointer) +
            " is not of a GPU's memory, or it has been freed");
  }
  found.bufferId = bufferId;
  found.legacyIpc = legacyIpc != 0;
  found.gpuDirect = gpuDirect != 0;
  return found;
}

} // namespace dlslime::cuda
