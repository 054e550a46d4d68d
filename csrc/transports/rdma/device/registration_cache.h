#pragma once

#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "interface/transport.h"
#include "transports/rdma/device/handles.h"

namespace dlslime::rdma {

// The memory that is registered with one device. Registering takes as long as
// sending tens of kilobytes, so registrations are kept for the next use of
// the same memory: until it is freed, which its MemoryOwner tells beforehand,
// or until they are too many. Those in use stay. Where nobody tells (memory
// that is not of torch's allocator), one lasts as long as what it was made for:
// who holds it holds the memory. Any thread.
class RegistrationCache final
    : public std::enable_shared_from_this<RegistrationCache> {
 public:
  // Two copies through the eager ring cost less than registering so little.
  static constexpr size_t kMostCopied = 128 * 1024;

  struct Limits {
    size_t bytes = 0; // of the registrations, beside those in use
    size_t entries = 0; // 0: nothing is kept
  };
  RegistrationCache(ProtectionDomainPtr domain, Limits limits)
      : domain_(std::move(domain)), limits_(limits) {}

  // Null: it is not registered.
  MemoryRegionPtr find(MemoryView view);
  // Registers the view, and more of its allocation where that is cheap.
  // Throws Error.
  MemoryRegionPtr acquire(MemoryView view);
  // See MemoryRegistrar. Registers large views, and small ones when their
  // allocation is met again: copying a small message once costs less.
  std::shared_ptr<const void> prepare(MemoryView view);

  size_t entries();
  size_t bytes();
  // Drops what is not in use.
  void trim();

 private:
  struct Entry {
    MemoryView range;
    MemoryRegionPtr region;
  };
  // A registration that ends with what it was made for. Connections may hold
  // the region longer than that, when its memory may be another's by then: so
  // it is found only while who holds `held` does.
  using StreamGate = std::shared_ptr<const MemoryRegionPtr>;
  struct Passing {
    MemoryView range;
    StreamGate::weak_type held;
  };
  using Entries = std::list<Entry>; // least recently used first
  using Dropped = std::vector<MemoryRegionPtr>;
  // Whether this allocation has been met, and its end will be told.
  enum class Met { kNever, kNow, kBefore };

  MemoryRegionPtr lookUp(MemoryView view);
  MemoryRegionPtr kept(MemoryView view);
  MemoryRegionPtr make(MemoryView range);
  MemoryRegionPtr keep(MemoryView range, MemoryRegionPtr region);
  MemoryRegionPtr passing(MemoryView view) const;
  StreamGate hold(MemoryView range, MemoryRegionPtr region);
  Met meet(MemoryOwner& owner);
  void onEnd(MemoryView allocation);
  void shrink(Limits limits, Dropped& dropped);
  void drop(Entries::iterator entry, Dropped& dropped);

  const ProtectionDomainPtr domain_;
  const Limits limits_;
  std::mutex mutex_;
  // Guarded by mutex_, and no region is freed while it is held:
  Entries entries_;
  std::map<const std::byte*, Entries::iterator> byAddress_;
  std::set<const std::byte*> watched_; // allocations
  size_t bytes_ = 0; // of the entries
  std::vector<Passing> passing_; // few: of what is under way
};

} // namespace dlslime::rdma
