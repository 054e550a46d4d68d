#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/log_once.h"
#include "base/threads/mutex.h"
#include "interface/accelerator.h"
#include "transports/rdma/device/handles.h"

namespace dlslime::rdma {

// GPU memory registered with a device. Whole allocations are registered,
// because programs cut tensors out of a few large allocations. A registration
// is kept until the allocation is found to have been freed, and the GPU gets
// its memory back no sooner. Any thread.
class GpuRegistrations {
 public:
  // If not `enabled`, nothing can be registered.
  GpuRegistrations(ProtectionDomainPtr domain, bool enabled)
      : domain_(std::move(domain)), enabled_(enabled) {}

  // Registers exactly the given memory, for the caller alone: find() and
  // acquire() do not know the region. Throws Error with the reason.
  MemoryRegionPtr make(const MemoryView& view);

  // Returns the region of the whole allocation, registered if need be. Returns
  // null if registering is impossible; each reason is logged once.
  MemoryRegionPtr acquire(MemoryView view);
  // Returns null if the memory is not registered.
  MemoryRegionPtr find(MemoryView view);

  size_t entries();
  // Drops the registrations of freed allocations, because new allocations may
  // begin at the old addresses.
  void dropFreed() EXCLUDES(mutex_);
  // Drops registrations not in use.
  void trim();

 private:
  struct Entry {
    GpuNicMemory::Allocation allocation;
    MemoryRegionPtr region; // null: it can't be registered
  };
  using Dropped = std::vector<MemoryRegionPtr>;
  // Address and size of an allocation; mapped allocations (see
  // GpuNicMemory::Allocation) may begin at the same address.
  using Extent = std::pair<const std::byte*, size_t>;
  static Extent extentOf(const GpuNicMemory::Allocation& allocation) {
    return {allocation.whole.data, allocation.whole.size};
  }

  MemoryRegionPtr tryToMake(const MemoryView& whole);
  const Entry* lookUp(const GpuNicMemory::Allocation& allocation) const
      REQUIRES(mutex_);
  void dropIdle(Dropped& dropped) REQUIRES(mutex_);
  void sayOnce(const Error& error);

  const ProtectionDomainPtr domain_;
  const bool enabled_;
  Mutex mutex_;
  // No region is freed while mutex_ is held.
  std::map<Extent, Entry> entries_ GUARDED_BY(mutex_);
  LogOnce said_;
};

} // namespace dlslime::rdma
