#include "cuda/nic_memory.h"

#include "core/log.h"
#include "cuda/allocation.h"

namespace dlslime::cuda {

namespace {

// A GPU that is told that a NIC's writes are complete finds them there, if it
// is one that sees to their order itself: all since Volta. For others they
// would have to be flushed, at the right moments at both ends: not by us.
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

// Of the whole allocation: descriptors are for whole pages. None: registering
// by the address may still work.
UniqueFd dmaBufOf(const Gpu& gpu, const Allocation& allocation) {
  const auto& driver = gpu.driver();
  if (driver.handleForRange == nullptr ||
      attribute(gpu, DeviceAttribute::kDmaBufSupported) == 0 ||
      allocation.base % kPageBytes != 0 || allocation.size % kPageBytes != 0) {
    return {};
  }
  int fd = -1;
  const Gpu::Scope scope(gpu);
  const auto result = driver.handleForRange(
      &fd, allocation.base, allocation.size, kDmaBufHandle, 0);
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

Accelerator::ForNics forNics(const Gpu& gpu, const MemoryView& view) {
  const auto pointer = reinterpret_cast<DevicePointer>(view.data);
  const auto allocation = allocationOf(gpu.driver(), pointer);
  if (!allocation.holds(pointer, view.size)) {
    refuse(gpu, "it is of several allocations");
  }
  if (!allocation.gpuDirect ||
      attribute(gpu, DeviceAttribute::kGpuDirectRdmaSupported) == 0) {
    refuse(gpu, "the GPU, or this allocation, has no GPUDirect RDMA");
  }
  if (attribute(gpu, DeviceAttribute::kGpuDirectRdmaOrdering) <
      kOrderedForTheGpu) {
    refuse(gpu, "it does not order the writes of NICs");
  }
  return {dmaBufOf(gpu, allocation), pointer - allocation.base};
}

} // namespace dlslime::cuda
