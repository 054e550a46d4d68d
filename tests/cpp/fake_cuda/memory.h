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
  // `fd` is adopted; `imported` marks memory of another process.
  Physical(int fd_, size_t size_, int device_, bool imported_)
      : fd(fd_), size(size_), device(device_), imported(imported_) {}
  ~Physical();
  Physical(const Physical&) = delete;
  Physical& operator=(const Physical&) = delete;

  const int fd;
  const size_t size;
  const int device;
  const bool imported;
  // Handle types for exporting; only cuMemCreate sets any.
  unsigned handleTypes = 0;
};
// Returns null if no memfd can be made so large.
std::shared_ptr<Physical> makePhysical(size_t size, int device);

// Reserved addresses. At the addresses known to programs the processor can't
// touch the memory, so that a stray access crashes as with a real GPU. The fake
// has addresses of its own, in equal order.
class Reservation {
 public:
  // Reserves at `wanted` if the addresses are free.
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

// The exporter's place of imported memory.
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
  const uint64_t id; // unique
  int opened = 1; // count of opens of an import
  Exporter exporter;
  // Whether cuIpcGetMemHandle can export the whole allocation; false for memory
  // of cuMemMap, and for memory that poses as a pool's.
  bool legacyIpc = true;
  bool accessible = true; // false: before cuMemSetAccess

 private:
  const DevicePointer base_;
};
using AllocationPtr = std::shared_ptr<Allocation>;

// All memory known to the process's driver. Any thread.
class Memory {
 public:
  static Memory& instance();

  // Returns null if no room is left.
  AllocationPtr allocate(size_t size, int device);
  Result free(DevicePointer base, bool imported);
  Result exportHandle(DevicePointer pointer, IpcMemoryHandle& handle);
  // `base` is the exporter's address, if needed by the importer.
  static void describe(
      const Physical& physical,
      IpcMemoryHandle& handle,
      DevicePointer base = 0);
  // Opens the memory told by describe(), in any process.
  static std::shared_ptr<Physical> open(
      const IpcMemoryHandle& handle,
      int device);
  Result
  importHandle(const IpcMemoryHandle& handle, int device, DevicePointer& base);
  // Returns the allocation at the address; null for memory of the host and for
  // unused addresses.
  AllocationPtr find(DevicePointer pointer);
  // Returns the allocations of the bytes, by address; empty if bytes are
  // missing.
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
  // Makes a descriptor for the bytes of several allocations; mapRange() maps
  // the bytes, and returns null for any further descriptor.
  int makeRange(const std::vector<AllocationPtr>& parts);
  void* mapRange(int fd, size_t& size);

  void* allocateHost(size_t size);
  Result freeHost(void* memory);
  // Registers memory of the program (cuMemHostRegister).
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
  // Freed addresses by size, oldest first: as with real drivers, the next
  // allocation of a size reuses the oldest.
  std::map<size_t, std::deque<DevicePointer>> freed_;
  std::map<DevicePointer, std::shared_ptr<Reservation>> reservations_;
  std::map<uint64_t, std::shared_ptr<Physical>> handles_;
  std::map<uint64_t, std::vector<std::shared_ptr<Physical>>>
      ranges_; // by inode
  uint64_t nextHandle_ = 1;
  struct HostMemory {
    size_t size;
    bool registered; // false: made by allocateHost()
  };
  std::map<DevicePointer, HostMemory> host_;
};

} // namespace fake_cuda
