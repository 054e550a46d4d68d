#include "cuda/nic_memory.h"

#include <algorithm>

#include "base/log.h"
#include "cuda/driver/allocation.h"

namespace dlslime::cuda {

namespace {

// The least ordering with which a GPU, once told that a NIC's writes are
// complete, finds the bytes in memory: all GPUs since Volta order the writes of
// NICs. On older GPUs the writes would have to be flushed at the right moments
// at both ends, so older GPUs are refused.
constexpr int kOrderedForTheGpu =
    100; // CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER
constexpr uint64_t kPageBytes = 4096; // of the host

int attribute(const Gpu& gpu, DeviceAttribute which) {
  int value = 0;
  gpu.driver().check(
      gpu.driver().deviceGetAttribute(&value, which, gpu.ordinal()),
      "asking what a GPU can do (cuDeviceGetAttribute)");
  return value;
}

[[noreturn]] void refuse(const Gpu& gpu, const char* why) {
  throw Error(
      ErrorCode::kUnavailable,
      "NICs can't get at memory of " + gpu.describe() + ": " + why);
}

// Returns a dma-buf of the whole range; dma-bufs are for whole pages. Returns
// none if the driver gives none: registering by address may still work.
UniqueFd dmaBufOf(const Gpu& gpu, DevicePointer base, size_t size) {
  const auto& driver = gpu.driver();
  if (driver.handleForRange == nullptr ||
      attribute(gpu, DeviceAttribute::kDmaBufSupported) == 0 ||
      base % kPageBytes != 0 || size % kPageBytes != 0) {
    return {};
  }
  int fd = -1;
  const Gpu::Scope scope(gpu);
  const auto result = driver.handleForRange(&fd, base, size, kDmaBufHandle, 0);
  if (result != Result::kSuccess) {
    logDebug(driver
                 .status(
                     result,
                     "a dma-buf of GPU memory (cuMemGetHandleForAddressRange)")
                 .message());
    return {};
  }
  return UniqueFd(fd);
}

} // namespace

GpuNicMemory::ForNics forNics(const Gpu& gpu, const MemoryView& view) {
  const auto pointer = reinterpret_cast<DevicePointer>(view.data);
  const auto all = allocationsOf(gpu, pointer, view.size);
  const bool capable = std::all_of(
      all.begin(), all.end(), [](const auto& one) { return one.gpuDirect; });
  if (!capable ||
      attribute(gpu, DeviceAttribute::kGpuDirectRdmaSupported) == 0) {
    refuse(gpu, "the GPU, or this allocation, has no GPUDirect RDMA");
  }
  if (attribute(gpu, DeviceAttribute::kGpuDirectRdmaOrdering) <
      kOrderedForTheGpu) {
    refuse(gpu, "the GPU does not order the writes of NICs");
  }
  const auto base = all.front().base;
  return {dmaBufOf(gpu, base, all.back().end() - base), pointer - base};
}

} // namespace dlslime::cuda
