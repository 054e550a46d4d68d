// Memory: allocating (for tests only), queries, copies, sharing.
#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "fake_cuda/control.h"
#include "fake_cuda/entry.h"

using namespace dlslime::cuda;
using namespace fake_cuda;

namespace {

// An end of a copy, kept alive until the copy is made.
struct Place {
  std::vector<AllocationPtr> allocations; // empty: memory of the host
  std::byte* bytes = nullptr;
  bool waits = false; // pageable: the driver copies before returning
};

bool resolve(DevicePointer pointer, size_t size, Place& place) {
  auto& memory = Memory::instance();
  if (!memory.find(pointer) && !memory.reservationOf(pointer)) {
    place.bytes = reinterpret_cast<std::byte*>(pointer);
    place.waits = !memory.pinned(pointer, size);
    return true;
  }
  place.allocations = memory.span(pointer, size);
  if (place.allocations.empty()) {
    return false;
  }
  const auto& first = *place.allocations.front();
  const auto& last = *place.allocations.back();
  place.bytes = first.place->alias(pointer);
  return pointer + size <= last.base() + last.size();
}

template <typename Value>
void answer(void* where, Value value) {
  std::memcpy(where, &value, sizeof(value));
}

Result attributeOf(
    PointerAttribute attribute,
    void* value,
    DevicePointer pointer,
    const Allocation* of) {
  switch (attribute) {
    case PointerAttribute::kMemoryType: {
      const bool pinned = Memory::instance().pinned(pointer, 1);
      answer<unsigned>(
          value,
          of != nullptr ? unsigned{kDeviceMemory}
              : pinned  ? unsigned{kHostMemory}
                        : 0U);
      return Result::kSuccess;
    }
    case PointerAttribute::kBufferId:
      answer<unsigned long long>(value, of != nullptr ? of->id : 0);
      return Result::kSuccess;
    case PointerAttribute::kDeviceOrdinal:
      answer<int>(value, of != nullptr ? of->physical->device : -2);
      return Result::kSuccess;
    case PointerAttribute::kIsLegacyIpcCapable:
      answer<unsigned>(
          value, of != nullptr && of->legacyIpc && !of->imported() ? 1U : 0U);
      return Result::kSuccess;
    case PointerAttribute::kRangeStart:
      // The driver's answer is about the reserved addresses, mapped or not.
      answer<DevicePointer>(value, of != nullptr ? of->place->base() : 0);
      return Result::kSuccess;
    case PointerAttribute::kRangeSize:
      answer<size_t>(value, of != nullptr ? of->place->size : 0);
      return Result::kSuccess;
    case PointerAttribute::kAllowedHandleTypes:
      answer<unsigned>(value, of != nullptr ? of->physical->handleTypes : 0);
      return Result::kSuccess;
    case PointerAttribute::kIsGpuDirectRdmaCapable:
      answer<unsigned>(value, of != nullptr ? 1U : 0U);
      return Result::kSuccess;
    default:
      return Result::kInvalidValue;
  }
}

struct Request {
  DevicePointer to, from;
  size_t size;
};

Result copyAll(const std::vector<Request>& all, Stream stream) {
  struct Ends {
    Place target, source;
    size_t size;
  };
  auto* const queue = queueOf(stream);
  std::vector<Ends> ends;
  bool waits = false;
  for (const auto& [to, from, size] : all) {
    Ends each{{}, {}, size};
    if (queue == nullptr || !resolve(to, size, each.target) ||
        !resolve(from, size, each.source)) {
      return Result::kInvalidValue;
    }
    waits |= each.target.waits || each.source.waits;
    ends.push_back(each);
  }
  queue->enqueue([ends] {
    for (const auto& [target, source, size] : ends) {
      std::memcpy(target.bytes, source.bytes, size);
    }
    return faultOf("copy") == Result::kSuccess;
  });
  if (waits && stream == nullptr) { // as with driver 580 on an H100
    waitKeepingOthersOut(queue->mark());
  } else if (waits) {
    queue->mark()->wait();
  }
  return Result::kSuccess;
}

} // namespace

std::byte* fake_cuda::bytesAt(DevicePointer pointer, size_t size) {
  Place place;
  return resolve(pointer, size, place) && !place.waits ? place.bytes : nullptr;
}

FAKE_CUDA_EXPORT Result cuMemAlloc_v2(DevicePointer* pointer, size_t size) {
  FAKE_CUDA_ENTER(cuMemAlloc);
  FAKE_CUDA_NEEDS_CONTEXT;
  const auto made = Memory::instance().allocate(size, currentDevice());
  if (!made) {
    return Result::kOutOfMemory;
  }
  *pointer = made->base();
  return Result::kSuccess;
}

// Waits for the device, as the real driver does.
FAKE_CUDA_EXPORT Result cuMemFree_v2(DevicePointer pointer) {
  FAKE_CUDA_ENTER(cuMemFree);
  waitForAllStreams();
  return Memory::instance().free(pointer, false);
}

FAKE_CUDA_EXPORT Result cuMemHostAlloc(void** memory, size_t size, unsigned) {
  FAKE_CUDA_ENTER(cuMemHostAlloc);
  FAKE_CUDA_NEEDS_CONTEXT;
  *memory = Memory::instance().allocateHost(size);
  return *memory != nullptr ? Result::kSuccess : Result::kOutOfMemory;
}

FAKE_CUDA_EXPORT Result cuMemFreeHost(void* memory) {
  FAKE_CUDA_ENTER(cuMemFreeHost);
  waitForAllStreams();
  return Memory::instance().freeHost(memory);
}

FAKE_CUDA_EXPORT Result
cuMemHostRegister_v2(void* memory, size_t size, unsigned /*flags*/) {
  FAKE_CUDA_ENTER(cuMemHostRegister);
  FAKE_CUDA_NEEDS_CONTEXT;
  return size > 0 ? Memory::instance().registerHost(memory, size)
                  : Result::kInvalidValue;
}

// Waits for the device, as the real driver does.
FAKE_CUDA_EXPORT Result cuMemHostUnregister(void* memory) {
  FAKE_CUDA_ENTER(cuMemHostUnregister);
  waitForAllStreams();
  return Memory::instance().unregisterHost(memory);
}

FAKE_CUDA_EXPORT Result cuMemHostGetDevicePointer_v2(
    DevicePointer* pointer,
    void* memory,
    unsigned flags) {
  FAKE_CUDA_ENTER(cuMemHostGetDevicePointer);
  *pointer = reinterpret_cast<DevicePointer>(memory);
  return flags == 0 && Memory::instance().pinned(*pointer, 1)
      ? Result::kSuccess
      : Result::kInvalidValue;
}

FAKE_CUDA_EXPORT Result cuPointerGetAttributes(
    unsigned count,
    PointerAttribute* attributes,
    void** values,
    DevicePointer pointer) {
  FAKE_CUDA_ENTER(cuPointerGetAttributes);
  const auto allocation = Memory::instance().find(pointer);
  for (unsigned i = 0; i < count; ++i) {
    const auto result =
        attributeOf(attributes[i], values[i], pointer, allocation.get());
    if (result != Result::kSuccess) {
      return result;
    }
  }
  return Result::kSuccess;
}

FAKE_CUDA_EXPORT Result cuMemcpyAsync(
    DevicePointer to,
    DevicePointer from,
    size_t size,
    Stream stream) {
  FAKE_CUDA_ENTER(cuMemcpyAsync);
  FAKE_CUDA_NEEDS_CONTEXT;
  return copyAll({{to, from, size}}, stream);
}

// The form of CUDA 12.8. Copies in an order of the fake's own.
FAKE_CUDA_EXPORT Result cuMemcpyBatchAsync(
    DevicePointer* to,
    DevicePointer* from,
    size_t* sizes,
    size_t count,
    CopyAttributes* attributes,
    size_t* firstOfAttributes,
    size_t attributesCount,
    size_t* /*failed*/,
    Stream stream) {
  FAKE_CUDA_ENTER(cuMemcpyBatchAsync);
  FAKE_CUDA_NEEDS_CONTEXT;
  if (stream == nullptr || count == 0 || attributesCount != 1 ||
      *firstOfAttributes != 0 || attributes->sourceOrder != kInStreamOrder) {
    return Result::kInvalidValue;
  }
  std::vector<Request> all;
  for (size_t i = count; i-- > 0;) {
    all.push_back({to[i], from[i], sizes[i]});
  }
  return copyAll(all, stream);
}

FAKE_CUDA_EXPORT Result
cuIpcGetMemHandle(IpcMemoryHandle* handle, DevicePointer pointer) {
  FAKE_CUDA_ENTER(cuIpcGetMemHandle);
  FAKE_CUDA_NEEDS_CONTEXT;
  return Memory::instance().exportHandle(pointer, *handle);
}

FAKE_CUDA_EXPORT Result cuIpcOpenMemHandle_v2(
    DevicePointer* pointer,
    IpcMemoryHandle handle,
    unsigned /*flags*/) {
  FAKE_CUDA_ENTER(cuIpcOpenMemHandle);
  FAKE_CUDA_NEEDS_CONTEXT;
  return Memory::instance().importHandle(handle, currentDevice(), *pointer);
}

// Waits for the device, as observed with real drivers.
FAKE_CUDA_EXPORT Result cuIpcCloseMemHandle(DevicePointer pointer) {
  FAKE_CUDA_ENTER(cuIpcCloseMemHandle);
  waitForAllStreams();
  return Memory::instance().free(pointer, true);
}

// Returns a descriptor for a NIC of the fake to register: the allocation's own,
// or a descriptor for a row of allocations.
FAKE_CUDA_EXPORT Result cuMemGetHandleForAddressRange(
    void* handle,
    DevicePointer pointer,
    size_t size,
    int type,
    unsigned long long /*flags*/) {
  FAKE_CUDA_ENTER(cuMemGetHandleForAddressRange);
  auto& memory = Memory::instance();
  const auto parts = memory.span(pointer, size);
  constexpr uint64_t kPage = 4096;
  if (parts.empty() || type != kDmaBufHandle || pointer % kPage != 0 ||
      size % kPage != 0 ||
      pointer + size > parts.back()->base() + parts.back()->size()) {
    return Result::kInvalidValue;
  }
  const int made = parts.size() == 1
      ? fcntl(parts[0]->physical->fd, F_DUPFD_CLOEXEC, 0)
      : memory.makeRange(parts);
  std::memcpy(handle, &made, sizeof(made));
  return made >= 0 ? Result::kSuccess : Result::kUnknown;
}

FAKE_CUDA_EXPORT void* fakeCudaPeek(uint64_t device) {
  Place place;
  return resolve(device, 0, place) ? place.bytes : nullptr;
}

FAKE_CUDA_EXPORT void fakeCudaDenyIpc(uint64_t device) {
  if (const auto allocation = Memory::instance().find(device)) {
    allocation->legacyIpc = false;
  }
}
