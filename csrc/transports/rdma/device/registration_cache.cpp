#include "transports/rdma/device/registration_cache.h"

#include <iterator>

#include "base/log.h"

namespace dlslime::rdma {

namespace {
// Largest allocation registered whole, because programs send parts of small
// allocations.
constexpr size_t kMostWhole = 4 * 1024 * 1024;

bool contains(MemoryView range, MemoryView view) {
  return range.data <= view.data &&
      view.data + view.size <= range.data + range.size;
}

} // namespace

MemoryRegionPtr RegistrationCache::lookUp(MemoryView view) {
  auto region = kept(view);
  return region ? region : passing(view);
}

MemoryRegionPtr RegistrationCache::kept(MemoryView view) {
  // Tries only the last entry beginning at or before the view's begin. Earlier
  // entries may contain the view, too, but are older and will be evicted.
  auto at = byAddress_.upper_bound(view.data);
  if (at == byAddress_.begin()) {
    return nullptr;
  }
  const auto entry = std::prev(at)->second;
  if (!contains(entry->range, view)) {
    return nullptr;
  }
  entries_.splice(entries_.end(), entries_, entry);
  return entry->region;
}

MemoryRegionPtr RegistrationCache::passing(MemoryView view) const {
  for (const auto& entry : passing_) {
    const auto holder =
        contains(entry.range, view) ? entry.holder.lock() : nullptr;
    if (holder) {
      return holder->region;
    }
  }
  return nullptr;
}

RegistrationCache::HolderPtr RegistrationCache::hold(
    MemoryView range,
    MemoryRegionPtr region) {
  auto holder = std::make_shared<const Holder>(std::move(region));
  range.owner = nullptr; // the entry outlives the owner
  std::erase_if(
      passing_, [](const Passing& entry) { return entry.holder.expired(); });
  passing_.push_back({range, holder});
  return holder;
}

MemoryRegionPtr RegistrationCache::find(MemoryView view) {
  if (view.owner == nullptr) {
    return nullptr;
  }
  const MutexLock lock(mutex_);
  return lookUp(view);
}

MemoryRegionPtr RegistrationCache::make(MemoryView range) {
  try {
    return std::make_shared<MemoryRegion>(domain_, range);
  } catch (const Error&) {
    // Dropping idle registrations may free the resources that are missing.
    Dropped dropped;
    const MutexLock lock(mutex_);
    shrink({}, dropped);
    if (dropped.empty()) {
      throw;
    }
  }
  return std::make_shared<MemoryRegion>(domain_, range);
}

MemoryRegionPtr RegistrationCache::acquire(MemoryView view) {
  if (view.owner == nullptr) {
    return make(view);
  }
  {
    const MutexLock lock(mutex_);
    if (auto known = lookUp(view)) {
      return known;
    }
  }
  if (meet(*view.owner) == Met::kNever) {
    return make(view);
  }
  const auto allocation = view.owner->allocation();
  const auto range = allocation.size <= kMostWhole ? allocation : view;
  return keep(range, make(range));
}

MemoryRegionPtr RegistrationCache::keep(
    MemoryView range,
    MemoryRegionPtr region) {
  range.owner = nullptr; // the entry outlives the owner
  Dropped dropped; // freed after unlocking
  const MutexLock lock(mutex_);
  if (auto known = lookUp(range)) { // another thread was quicker
    dropped.push_back(std::move(region));
    return known;
  }
  const auto shorter = byAddress_.find(range.data);
  if (shorter != byAddress_.end()) {
    drop(shorter->second, dropped);
  }
  entries_.push_back({range, region});
  byAddress_[range.data] = std::prev(entries_.end());
  bytes_ += range.size;
  shrink(limits_, dropped);
  return region;
}

RegistrationPtr RegistrationCache::prepare(MemoryView view) {
  if (view.owner == nullptr) {
    return nullptr;
  }
  {
    const MutexLock lock(mutex_);
    if (auto region = kept(view)) {
      return region;
    }
    if (auto region = passing(view)) {
      return hold(view, std::move(region));
    }
  }
  try {
    const auto met = meet(*view.owner);
    if (met != Met::kBefore && view.size <= kMostCopied) {
      return nullptr;
    }
    if (met != Met::kNever) {
      return acquire(view);
    }
    auto region = make(view);
    const MutexLock lock(mutex_);
    return hold(view, std::move(region));
  } catch (const Error& error) {
    logDebug(error.what()); // a warning follows when the memory is used
    return nullptr;
  }
}

RegistrationCache::Met RegistrationCache::meet(MemoryOwner& owner) {
  auto allocation = owner.allocation();
  allocation.owner = nullptr; // the callback outlives the owner
  const MutexLock lock(mutex_);
  if (watched_.contains(allocation.data)) {
    return Met::kBefore;
  }
  const auto told = [cache = weak_from_this(), allocation] {
    if (const auto alive = cache.lock()) {
      alive->onEnd(allocation);
    }
  };
  if (limits_.entries == 0 || !owner.onEnd(told)) {
    return Met::kNever;
  }
  watched_.insert(allocation.data);
  return Met::kNow;
}

void RegistrationCache::onEnd(MemoryView allocation) {
  Dropped dropped;
  const MutexLock lock(mutex_);
  watched_.erase(allocation.data);
  for (auto at = byAddress_.lower_bound(allocation.data);
       at != byAddress_.end() &&
       at->first < allocation.data + allocation.size;) {
    const auto entry = (at++)->second;
    drop(entry, dropped);
  }
}

void RegistrationCache::drop(Entries::iterator entry, Dropped& dropped) {
  bytes_ -= entry->range.size;
  dropped.push_back(std::move(entry->region));
  byAddress_.erase(entry->range.data);
  entries_.erase(entry);
}

void RegistrationCache::shrink(Limits limits, Dropped& dropped) {
  for (auto at = entries_.begin(); at != entries_.end() &&
       (bytes_ > limits.bytes || entries_.size() > limits.entries);) {
    const auto entry = at++;
    if (entry->region.use_count() == 1) { // no new user while locked
      drop(entry, dropped);
    }
  }
}

void RegistrationCache::trim() {
  Dropped dropped; // freed after unlocking
  const MutexLock lock(mutex_);
  shrink({}, dropped);
}

size_t RegistrationCache::entries() {
  const MutexLock lock(mutex_);
  return entries_.size();
}

size_t RegistrationCache::bytes() {
  const MutexLock lock(mutex_);
  return bytes_;
}

} // namespace dlslime::rdma
