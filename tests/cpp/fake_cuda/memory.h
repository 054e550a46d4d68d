#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "cuda/driver/cuda_api.h"

namespace fake_cuda {

using dlslime::cuda::DevicePointer;
using dlslime::cuda::IpcMemoryHandle;
using dlslime::cuda::Result;

// Bytes of a device, in a memfd.
struct Physical {
  // `fd` is adopted; `imported`: it is another process's.
  Physical(int fd_, size_t size_, int device_, bool imported_)
      : fd(fd_), size(size_), device(device_), imported(imported_) {}
  ~Physical();
  Physical(const Physical&) = delete;
  Physical& operator=(const Physical&) = delete;

  const int fd;
  const size_t size;
  const int device;
  const bool imported;
  unsigned handleTypes = 0; // as which it can be exported; of cuMemCreate alone
};
// Nothing: there is no so large a memfd.
std::shared_ptr<Physical> makePhysical(size_t size, int device);

// Addresses. Under those that programs see the processor can't touch the
// memory, so that a stray access crashes as on a real GPU; the fake uses its
// own, at which what is next to each other is so, too.
class Reservation {
 public:
  // At `wanted`, if nothing is there.
  explicit Reservation(size_t size, DevicePointer wanted = 0);
  ~Reservation();
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;

  DevicePointer base() const {
    return reinterpret_cast<DevicePointer>(seen_);
  }
  std::byte* alias(DevicePointer pointer) const {
    return alias_ + (pointer - base());
  }
  const size_t size;

 private:
  std::byte* seen_;
  std::byte* alias_;
};

// Where another process has what is imported.
struct Exporter {
  int pid = 0;
  DevicePointer base = 0;
  bool operator==(const Exporter&) const = default;
};

// Memory at addresses.
class Allocation {
 public:
  Allocation(
      std::shared_ptr<Physical> physical,
      std::shared_ptr<Reservation> place,
      DevicePointer base);
  ~Allocation();
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;

  DevicePointer base() const {
    return base_;
  }
  std::byte* bytes() const {
    return place->alias(base_);
  }
  size_t size() const {
    return physical->size;
  }
  bool imported() const {
    return physical->imported;
  }

  const std::shared_ptr<Physical> physical;
  const std::shared_ptr<Reservation> place;
  const uint64_t id; // another one for each
  int opened = 1; // of imports
  Exporter exporter;
  // It can be exported whole by cuIpcGetMemHandle. Else it was mapped by
  // cuMemMap, or pretends to be of a pool.
  bool legacyIpc = true;
  bool accessible = true; // false: cuMemSetAccess has not been called

 private:
  const DevicePointer base_;
};
using AllocationPtr = std::shared_ptr<Allocation>;

// All memory that the driver of this process knows. Any thread.
class Memory {
 public:
  static Memory& instance();

  // Null: there is no room.
  AllocationPtr allocate(size_t size, int device);
  Result free(DevicePointer base, bool imported);
  Result exportHandle(DevicePointer pointer, IpcMemoryHandle& handle);
  // `base`: where the exporter has it, if that matters.
  static void describe(
      const Physical& physical,
      IpcMemoryHandle& handle,
      DevicePointer base = 0);
  // Of what describe() has told, in another process or this one.
  static std::shared_ptr<Physical> open(
      const IpcMemoryHandle& handle,
      int device);
  Result
  importHandle(const IpcMemoryHandle& handle, int device, DevicePointer& base);
  // The allocation that holds this address; null: it is the host's, or none.
  AllocationPtr find(DevicePointer pointer);
  // Those which hold these bytes, by address; empty: they are not all there.
  std::vector<AllocationPtr> span(DevicePointer pointer, size_t size);

  // --- Virtual memory management (virtual_memory.cpp) ----------------------
  DevicePointer reserve(size_t size);
  Result unreserve(DevicePointer base, size_t size);
  std::shared_ptr<Reservation> reservationOf(DevicePointer pointer);
  uint64_t addHandle(std::shared_ptr<Physical> physical);
  std::shared_ptr<Physical> ofHandle(uint64_t handle);
  Result dropHandle(uint64_t handle);
  Result map(DevicePointer pointer, size_t size, uint64_t handle);
  Result unmap(DevicePointer pointer, size_t size);
  Result allowAccess(DevicePointer pointer, size_t size);
  // A descriptor that stands for so many bytes of several allocations; mapRange
  // finds them by it: null if it is none.
  int makeRange(const std::vector<AllocationPtr>& parts);
  void* mapRange(int fd, size_t& size);

  void* allocateHost(size_t size);
  Result freeHost(void* memory);
  // Memory of the program's own (cuMemHostRegister).
  Result registerHost(void* memory, size_t size);
  Result unregisterHost(void* memory);
  bool pinned(DevicePointer pointer, size_t size);
  int count(bool imported);
  int handleCount();
  int pinnedCount();

 private:
  AllocationPtr findLocked(DevicePointer pointer);

  std::mutex mutex_;
  std::map<DevicePointer, AllocationPtr> allocations_;
  // Where memory of a size was freed, by age: as drivers do, the next one of
  // that size is made there.
  std::map<size_t, std::deque<DevicePointer>> freed_;
  std::map<DevicePointer, std::shared_ptr<Reservation>> reservations_;
  std::map<uint64_t, std::shared_ptr<Physical>> handles_;
  std::map<uint64_t, std::vector<std::shared_ptr<Physical>>>
      ranges_; // by inode
  uint64_t nextHandle_ = 1;
  struct HostMemory {
    size_t size;
    bool registered; // false: it was allocated here
  };
  std::map<DevicePointer, HostMemory> host_;
};

} // namespace fake_cuda
