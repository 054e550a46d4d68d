#include "transports/rdma/device/gpu_registrations.h"

#include "base/log.h"

namespace dlslime::rdma {

namespace {

// Number of entries above which idle entries are dropped. Tensors of many sizes
// in mapped memory have an extent each.
constexpr size_t kMostKept = 1024;

bool stillThere(const GpuNicMemory::Allocation& allocation) {
  try {
    const auto& whole = allocation.whole;
    return whole.accelerator->nicMemory().allocationOf(whole).ids ==
        allocation.ids;
  } catch (const Error&) {
    return false; // no allocation is left, or a smaller one
  }
}

} // namespace

const GpuRegistrations::Entry* GpuRegistrations::lookUp(
    const GpuNicMemory::Allocation& allocation) const {
  const auto found = entries_.find(extentOf(allocation));
  return found != entries_.end() &&
          found->second.allocation.ids == allocation.ids
      ? &found->second
      : nullptr;
}

MemoryRegionPtr GpuRegistrations::find(MemoryView view) {
  if (view.accelerator == nullptr) {
    return nullptr;
  }
  try {
    const auto allocation = view.accelerator->nicMemory().allocationOf(view);
    const MutexLock lock(mutex_);
    const auto* const known = lookUp(allocation);
    return known != nullptr ? known->region : nullptr;
  } catch (const Error&) {
    return nullptr;
  }
}

MemoryRegionPtr GpuRegistrations::make(const MemoryView& view) {
  if (!enabled_) {
    throw Error(ErrorCode::kUnavailable, "DLSLIME_GPUDIRECT=off is set");
  }
  return std::make_shared<MemoryRegion>(
      domain_, view, view.accelerator->nicMemory().forNics(view));
}

MemoryRegionPtr GpuRegistrations::tryToMake(const MemoryView& whole) {
  try {
    return make(whole);
  } catch (const Error& error) {
    sayOnce(error);
    return nullptr;
  }
}

MemoryRegionPtr GpuRegistrations::acquire(MemoryView view) {
  if (view.accelerator == nullptr) {
    return nullptr;
  }
  GpuNicMemory::Allocation allocation;
  try {
    allocation = view.accelerator->nicMemory().allocationOf(view);
  } catch (const Error& error) {
    sayOnce(error);
    return nullptr;
  }
  {
    const MutexLock lock(mutex_);
    if (const auto* const known = lookUp(allocation)) {
      return known->region;
    }
  }
  dropFreed();
  auto region = tryToMake(allocation.whole);
  Dropped dropped; // freed after unlocking
  const MutexLock lock(mutex_);
  // Another thread has registered the allocation meanwhile.
  if (const auto* const known = lookUp(allocation)) {
    dropped.push_back(std::move(region));
    return known->region;
  }
  if (entries_.size() >= kMostKept) {
    dropIdle(dropped);
  }
  entries_[extentOf(allocation)] = {allocation, region};
  return region;
}

void GpuRegistrations::dropFreed() {
  std::vector<GpuNicMemory::Allocation> freed;
  {
    const MutexLock lock(mutex_);
    for (const auto& [extent, entry] : entries_) {
      freed.push_back(entry.allocation);
    }
  }
  std::erase_if(freed, stillThere); // calls the driver, hence without the lock
  Dropped dropped; // freed after unlocking
  const MutexLock lock(mutex_);
  for (const auto& allocation : freed) {
    if (const auto* const known = lookUp(allocation)) {
      dropped.push_back(known->region);
      entries_.erase(extentOf(allocation));
    }
  }
}

void GpuRegistrations::dropIdle(Dropped& dropped) {
  std::erase_if(entries_, [&](auto& entry) {
    const bool idle = entry.second.region.use_count() <= 1;
    if (idle) {
      dropped.push_back(std::move(entry.second.region));
    }
    return idle;
  });
}

void GpuRegistrations::trim() {
  Dropped dropped; // freed after unlocking
  const MutexLock lock(mutex_);
  dropIdle(dropped);
}

size_t GpuRegistrations::entries() {
  const MutexLock lock(mutex_);
  return entries_.size();
}

void GpuRegistrations::sayOnce(const Error& error) {
  if (said_.isNew(error.what())) {
    logWarning(
        "CUDA tensors go to other hosts through pinned memory, and not by "
        "GPUDirect, because " +
        std::string(error.what()));
  }
}

} // namespace dlslime::rdma
