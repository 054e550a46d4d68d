#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/log_once.h"
#include "interface/accelerator.h"
#include "transports/rdma/device/handles.h"

namespace dlslime::rdma {

// The memory of GPUs that is registered with one device: whole allocations,
// since programs cut their tensors out of few large ones. Kept until an
// allocation is found to have been freed: a GPU gets its memory back no sooner.
// Any thread.
class GpuRegistrations {
 public:
  // Not `enabled`: nothing can be registered.
  GpuRegistrations(ProtectionDomainPtr domain, bool enabled)
      : domain_(std::move(domain)), enabled_(enabled) {}

  // Exactly this memory, for whoever has the result; others don't find it.
  // Throws Error: it can't be, and why.
  MemoryRegionPtr make(const MemoryView& view);

  // Null: it can't be, which is logged, each reason once.
  MemoryRegionPtr acquire(MemoryView view);
  // Null: it is not registered.
  MemoryRegionPtr find(MemoryView view);

  size_t entries();
  // Drops what has been freed: others begin where it was.
  void dropFreed();
  // Drops what is not in use.
  void trim();

 private:
  struct Entry {
    Accelerator::Allocation allocation;
    MemoryRegionPtr region; // null: it can't be registered
  };
  using Dropped = std::vector<MemoryRegionPtr>;
  // Of mapped memory (Accelerator::Allocation) several may begin at one place.
  using Extent = std::pair<const std::byte*, size_t>;
  static Extent extentOf(const Accelerator::Allocation& allocation) {
    return {allocation.whole.data, allocation.whole.size};
  }

  MemoryRegionPtr tryToMake(const MemoryView& whole);
  const Entry* lookUp(const Accelerator::Allocation& allocation) const;
  void dropIdle(Dropped& dropped);
  void sayOnce(const Error& error);

  const ProtectionDomainPtr domain_;
  const bool enabled_;
  std::mutex mutex_;
  // Guarded by mutex_, and no region is freed while it is held:
  std::map<Extent, Entry> entries_;
  LogOnce said_;
};

} // namespace dlslime::rdma
