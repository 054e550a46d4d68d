#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "cuda/cuda_api.h"

namespace fake_cuda {

using dlslime::cuda::DevicePointer;
using dlslime::cuda::IpcMemoryHandle;
using dlslime::cuda::Result;

// Bytes of a device, in a memfd: under the address that programs see the
// processor can't touch them, so that a stray access crashes as on a real GPU;
// the fake uses a second mapping.
class Allocation {
 public:
  // `fd` is adopted; `imported`: it is another process's.
  Allocation(int fd, size_t size, int device, bool imported);
  ~Allocation();
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;

  DevicePointer base() const {
    return reinterpret_cast<DevicePointer>(seen_);
  }
  std::byte* bytes() const {
    return alias_;
  }
  size_t size() const {
    return size_;
  }

  const int fd;
  const int device;
  const bool imported;
  const uint64_t id; // another one for each
  int opened = 1; // of imports
  int legacyIpc = 1;

 private:
  const size_t size_;
  std::byte* seen_;
  std::byte* alias_;
};

// All memory that the driver of this process knows. Any thread.
class Memory {
 public:
  static Memory& instance();

  // Nothing: there is no so large a memfd.
  std::shared_ptr<Allocation> allocate(size_t size, int device);
  Result free(DevicePointer base, bool imported);
  Result exportHandle(DevicePointer pointer, IpcMemoryHandle& handle);
  Result
  importHandle(const IpcMemoryHandle& handle, int device, DevicePointer& base);
  // The allocation that holds this address; null: it is the host's.
  std::shared_ptr<Allocation> find(DevicePointer pointer);

  void* allocateHost(size_t size);
  Result freeHost(void* memory);
  bool pinned(DevicePointer pointer, size_t size);
  int count(bool imported);
  int pinnedCount();

 private:
  std::shared_ptr<Allocation> findLocked(DevicePointer pointer);

  std::mutex mutex_;
  std::map<DevicePointer, std::shared_ptr<Allocation>> allocations_;
  std::map<DevicePointer, size_t> host_;
};

} // namespace fake_cuda
