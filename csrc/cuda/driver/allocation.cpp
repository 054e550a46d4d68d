#include "cuda/driver/allocation.h"

#include <array>

namespace dlslime::cuda {

Allocation allocationOf(const Driver& driver, DevicePointer pointer) {
  Allocation found;
  unsigned type = 0, legacyIpc = 0, gpuDirect = 0;
  unsigned long long bufferId = 0;
  std::array attributes{
      PointerAttribute::kAllowedHandleTypes,
      PointerAttribute::kMemoryType,
      PointerAttribute::kDeviceOrdinal,
      PointerAttribute::kBufferId,
      PointerAttribute::kRangeStart,
      PointerAttribute::kRangeSize,
      PointerAttribute::kIsLegacyIpcCapable,
      PointerAttribute::kIsGpuDirectRdmaCapable};
  std::array<void*, attributes.size()> values{
      &found.handleTypes,
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
            " is not in memory of a GPU, or the memory has been freed");
  }
  found.bufferId = bufferId;
  found.legacyIpc = legacyIpc != 0;
  if (found.legacyIpc) {
    found.handleTypes = 0;
  }
  found.gpuDirect = gpuDirect != 0;
  return found;
}

Allocation mappedAt(const Gpu& gpu, DevicePointer pointer) {
  const Gpu::Scope scope(gpu);
  auto found = allocationOf(gpu.driver(), pointer);
  if (found.legacyIpc) {
    return found;
  }
  gpu.driver().check(
      gpu.driver().addressRange(&found.base, &found.size, pointer),
      "asking for the extent of GPU memory (cuMemGetAddressRange)");
  if (!found.holds(pointer, 1)) { // else allocationsOf() would never end
    throw Error(
        ErrorCode::kUnavailable,
        "the CUDA driver finds the address " + std::to_string(pointer) +
            " of " + gpu.describe() + " in " + std::to_string(found.size) +
            " bytes at " + std::to_string(found.base) +
            ", which do not contain the address");
  }
  return found;
}

std::vector<Allocation>
allocationsOf(const Gpu& gpu, DevicePointer pointer, size_t bytes) {
  std::vector<Allocation> all{mappedAt(gpu, pointer)};
  while (all.back().end() - pointer < bytes) {
    if (all.back().legacyIpc) {
      throw Error(
          ErrorCode::kInvalidArgument,
          std::to_string(bytes) + " bytes of " + gpu.describe() +
              " reach beyond their allocation of " +
              std::to_string(all.back().size));
    }
    all.push_back(mappedAt(gpu, all.back().end()));
  }
  return all;
}

} // namespace dlslime::cuda
