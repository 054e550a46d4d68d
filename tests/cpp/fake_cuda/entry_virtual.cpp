// Virtual memory management: physical memory and addresses apart.
#include <fcntl.h>
#include <sys/stat.h>

#include <cstring>

#include "fake_cuda/control.h"
#include "fake_cuda/entry.h"

using namespace dlslime::cuda;
using namespace fake_cuda;

namespace {

// Granularity of sizes and addresses; the real driver's is 2 MiB.
constexpr size_t kGranularity = 64 << 10;

bool isWhole(uint64_t number) {
  return number != 0 && number % kGranularity == 0;
}

std::shared_ptr<Physical> openDescriptor(int given) {
  struct stat info {};
  const int copy = fcntl(given, F_DUPFD_CLOEXEC, 0);
  return copy >= 0 && fstat(copy, &info) == 0
      ? std::make_shared<Physical>(
            copy, static_cast<size_t>(info.st_size), currentDevice(), true)
      : nullptr;
}

} // namespace

FAKE_CUDA_EXPORT Result cuMemCreate(
    MemoryHandle* handle,
    size_t size,
    const AllocationProperties* properties,
    unsigned long long flags) {
  FAKE_CUDA_ENTER(cuMemCreate);
  if (!isWhole(size) || properties->type != kPinnedAllocation ||
      properties->location.type != kDeviceLocation || flags != 0) {
    return Result::kInvalidValue;
  }
  const auto made = makePhysical(size, properties->location.id);
  if (!made) {
    return Result::kOutOfMemory;
  }
  made->handleTypes = static_cast<unsigned>(properties->requestedHandleTypes);
  *handle = Memory::instance().addHandle(made);
  return Result::kSuccess;
}

FAKE_CUDA_EXPORT Result cuMemRelease(MemoryHandle handle) {
  FAKE_CUDA_ENTER(cuMemRelease);
  return Memory::instance().dropHandle(handle);
}

FAKE_CUDA_EXPORT Result cuMemAddressReserve(
    DevicePointer* pointer,
    size_t size,
    size_t /*alignment*/,
    DevicePointer /*wanted*/,
    unsigned long long flags) {
  FAKE_CUDA_ENTER(cuMemAddressReserve);
  if (!isWhole(size) || flags != 0) {
    return Result::kInvalidValue;
  }
  *pointer = Memory::instance().reserve(size);
  return Result::kSuccess;
}

FAKE_CUDA_EXPORT Result cuMemAddressFree(DevicePointer pointer, size_t size) {
  FAKE_CUDA_ENTER(cuMemAddressFree);
  return Memory::instance().unreserve(pointer, size);
}

FAKE_CUDA_EXPORT Result cuMemMap(
    DevicePointer pointer,
    size_t size,
    size_t offset,
    MemoryHandle handle,
    unsigned long long flags) {
  FAKE_CUDA_ENTER(cuMemMap);
  if (!isWhole(size) || offset != 0 || flags != 0) {
    return Result::kInvalidValue;
  }
  return Memory::instance().map(pointer, size, handle);
}

FAKE_CUDA_EXPORT Result cuMemUnmap(DevicePointer pointer, size_t size) {
  FAKE_CUDA_ENTER(cuMemUnmap);
  return Memory::instance().unmap(pointer, size);
}

FAKE_CUDA_EXPORT Result cuMemSetAccess(
    DevicePointer pointer,
    size_t size,
    const AccessDescription* descriptions,
    size_t count) {
  FAKE_CUDA_ENTER(cuMemSetAccess);
  if (count != 1 || descriptions->location.type != kDeviceLocation ||
      descriptions->flags != kReadAndWrite) {
    return Result::kInvalidValue;
  }
  return Memory::instance().allowAccess(pointer, size);
}

// Returns the bounds of the memory mapped by cuMemMap, not of the reserved
// addresses, as the real driver does.
FAKE_CUDA_EXPORT Result cuMemGetAddressRange_v2(
    DevicePointer* base,
    size_t* size,
    DevicePointer pointer) {
  FAKE_CUDA_ENTER(cuMemGetAddressRange);
  FAKE_CUDA_NEEDS_CONTEXT;
  const auto found = Memory::instance().find(pointer);
  if (!found) {
    return Result::kNotFound;
  }
  *base = found->base();
  *size = found->size();
  return Result::kSuccess;
}

FAKE_CUDA_EXPORT Result
cuMemRetainAllocationHandle(MemoryHandle* handle, void* pointer) {
  FAKE_CUDA_ENTER(cuMemRetainAllocationHandle);
  auto& memory = Memory::instance();
  const auto found = memory.find(reinterpret_cast<DevicePointer>(pointer));
  if (!found || !memory.reservationOf(found->base())) {
    return Result::kInvalidValue;
  }
  *handle = memory.addHandle(found->physical);
  return Result::kSuccess;
}

FAKE_CUDA_EXPORT Result cuMemExportToShareableHandle(
    void* shareable,
    MemoryHandle handle,
    int type,
    unsigned long long flags) {
  FAKE_CUDA_ENTER(cuMemExportToShareableHandle);
  const auto physical = Memory::instance().ofHandle(handle);
  if (!physical || flags != 0 ||
      (physical->handleTypes & static_cast<unsigned>(type)) == 0) {
    return Result::kInvalidValue;
  }
  if (type == kFabricHandle) {
    Memory::describe(*physical, *static_cast<IpcMemoryHandle*>(shareable));
    return faultOf("fabric"); // no channel
  }
  const int copy = fcntl(physical->fd, F_DUPFD, 0);
  std::memcpy(shareable, &copy, sizeof(copy));
  return copy >= 0 ? Result::kSuccess : Result::kUnknown;
}

// Works in the exporting process, too, unlike cuIpcOpenMemHandle.
FAKE_CUDA_EXPORT Result cuMemImportFromShareableHandle(
    MemoryHandle* handle,
    void* shareable,
    int type) {
  FAKE_CUDA_ENTER(cuMemImportFromShareableHandle);
  FAKE_CUDA_NEEDS_CONTEXT;
  std::shared_ptr<Physical> made;
  if (type == kFabricHandle && faultOf("fabric") == Result::kSuccess) {
    made = Memory::open(
        *static_cast<const IpcMemoryHandle*>(shareable), currentDevice());
  } else if (type == kDescriptorHandle) {
    made =
        openDescriptor(static_cast<int>(reinterpret_cast<intptr_t>(shareable)));
  }
  if (!made || !isWhole(made->size)) {
    return Result::kInvalidValue;
  }
  *handle = Memory::instance().addHandle(made);
  return Result::kSuccess;
}

FAKE_CUDA_EXPORT void* fakeCudaMapRange(int fd, size_t* size) {
  return Memory::instance().mapRange(fd, *size);
}
