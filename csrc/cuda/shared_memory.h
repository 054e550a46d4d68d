#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "core/memory.h"
#include "cuda/allocation.h"
#include "cuda/gpu.h"

namespace dlslime::cuda {

// What a process needs to map an allocation of another one on its host. Sent as
// it is: both run the same build of the protocol.
struct ExportedAllocation {
  uint64_t id = 0; // the exporter's own; never used twice
  uint64_t base = 0; // the exporter's address of it
  uint64_t size = 0;
  IpcMemoryHandle handle{};
  Uuid gpu{};
};

// The allocations of this process that peers may map. Any thread.
class Exports {
 public:
  // The one that holds these bytes, exported at its first use. Throws Error:
  // kUnavailable, and why, if this memory can't be shared (expandable segments,
  // a container that forbids it), which is remembered as well.
  ExportedAllocation of(const Gpu& gpu, DevicePointer pointer, size_t bytes);
  // False: it was found to have been freed. Peers should let go of it, or its
  // memory is not given back to the GPU. Looked for when others are exported.
  bool live(uint64_t id);

 private:
  struct Entry {
    Allocation allocation;
    ExportedAllocation exported;
    Status problem;
  };
  Entry make(const Gpu& gpu, const Allocation& allocation);
  void dropFreed(const Driver& driver);

  std::mutex mutex_;
  // Guarded by mutex_. One that was freed is found out by its buffer id.
  std::map<DevicePointer, Entry> entries_;
  uint64_t nextId_ = 1;
};

// A peer's allocation, mapped here. Unmapped with its last user.
class Mapping {
 public:
  // Throws Error{kUnavailable}: it can't be, and why.
  Mapping(std::shared_ptr<Gpu> gpu, const ExportedAllocation& exported);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  // Where so many bytes of the exporter's address are here. Throws
  // Error{kTransportFailed}: they are not in this allocation.
  DevicePointer at(uint64_t address, size_t bytes) const;

 private:
  const std::shared_ptr<Gpu> gpu_;
  const uint64_t base_;
  const size_t size_;
  DevicePointer here_ = 0;
};

// The mappings of one peer's allocations. Any thread.
class Imports {
 public:
  // At most so many are kept for their next use; those in use stay.
  explicit Imports(size_t most = 64) : most_(most) {}

  std::shared_ptr<const Mapping> of(
      const std::shared_ptr<Gpu>& gpu,
      const ExportedAllocation& exported);
  // The peer has freed it, or is gone.
  void forget(uint64_t id);
  size_t size();

 private:
  struct Entry {
    uint64_t id;
    Device device;
    std::shared_ptr<const Mapping> mapping;
  };
  void shrink(std::vector<std::shared_ptr<const Mapping>>& dropped);

  const size_t most_;
  std::mutex mutex_;
  std::vector<Entry> entries_; // guarded by mutex_; least recently used first
};

} // namespace dlslime::cuda
