#pragma once

#include <list>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "base/threads/mutex.h"
#include "interface/transport.h"
#include "transports/rdma/device/handles.h"

namespace dlslime::rdma {

// Memory registered with a device. Registering takes as long as sending tens of
// kilobytes, so a registration is kept for the next use of the memory: until
// the memory is freed, which its MemoryOwner tells beforehand, or until the
// limits evict the registration. Registrations in use are never evicted. If no
// owner tells (memory outside torch's allocator), a registration lasts as long
// as its user, which holds the memory. Any thread.
class RegistrationCache final
    : public std::enable_shared_from_this<RegistrationCache> {
 public:
  // Size up to which two copies through the eager ring cost less than
  // registering.
  static constexpr size_t kMostCopied = 128 * 1024;

  struct Limits {
    size_t bytes = 0; // of all registrations; only idle ones are dropped
    size_t entries = 0; // 0: nothing is kept
  };
  RegistrationCache(ProtectionDomainPtr domain, Limits limits)
      : domain_(std::move(domain)), limits_(limits) {}

  // Returns null if the memory is not registered.
  MemoryRegionPtr find(MemoryView view);
  // Returns a region covering the view: a known region, or a new region of the
  // view or, if small, of the whole allocation. Throws Error.
  MemoryRegionPtr acquire(MemoryView view);
  // Implements MemoryRegistrar::prepare(). Registers large views at once, and
  // small views when their allocation is met again, because copying a small
  // message once costs less.
  RegistrationPtr prepare(MemoryView view);

  size_t entries();
  size_t bytes();
  // Drops registrations not in use.
  void trim();

 private:
  struct Entry {
    MemoryView range;
    MemoryRegionPtr region;
  };
  // Holds a registration for its user alone. Connections may keep the region
  // for longer, when the memory may already belong to another object, so
  // passing() finds the region only while the user keeps the holder.
  struct Holder final : Registration {
    explicit Holder(MemoryRegionPtr held) : region(std::move(held)) {}
    const MemoryRegionPtr region;
  };
  using HolderPtr = std::shared_ptr<const Holder>;
  struct Passing {
    MemoryView range;
    HolderPtr::weak_type holder;
  };
  using Entries = std::list<Entry>; // least recently used first
  using Dropped = std::vector<MemoryRegionPtr>;
  // How meet() found an allocation: met now or before, so that its end will be
  // told, or never told.
  enum class Met { kNever, kNow, kBefore };

  MemoryRegionPtr lookUp(MemoryView view) REQUIRES(mutex_);
  MemoryRegionPtr kept(MemoryView view) REQUIRES(mutex_);
  MemoryRegionPtr make(MemoryView range) EXCLUDES(mutex_);
  MemoryRegionPtr keep(MemoryView range, MemoryRegionPtr region)
      EXCLUDES(mutex_);
  MemoryRegionPtr passing(MemoryView view) const REQUIRES(mutex_);
  HolderPtr hold(MemoryView range, MemoryRegionPtr region) REQUIRES(mutex_);
  Met meet(MemoryOwner& owner) EXCLUDES(mutex_);
  void onEnd(MemoryView allocation) EXCLUDES(mutex_);
  void shrink(Limits limits, Dropped& dropped) REQUIRES(mutex_);
  void drop(Entries::iterator entry, Dropped& dropped) REQUIRES(mutex_);

  const ProtectionDomainPtr domain_;
  const Limits limits_;
  Mutex mutex_;
  // No region is freed while mutex_ is held.
  Entries entries_ GUARDED_BY(mutex_);
  std::map<const std::byte*, Entries::iterator> byAddress_ GUARDED_BY(mutex_);
  // Begins of allocations.
  std::set<const std::byte*> watched_ GUARDED_BY(mutex_);
  size_t bytes_ GUARDED_BY(mutex_) = 0; // of the entries
  // Few: only memory of operations under way.
  std::vector<Passing> passing_ GUARDED_BY(mutex_);
};

} // namespace dlslime::rdma
