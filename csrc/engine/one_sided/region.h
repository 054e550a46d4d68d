#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/memory/shared_pages.h"
#include "interface/accelerator.h"
#include "interface/transport.h"

namespace dlslime {

// What a process tells others about memory that it has registered, for their
// one-sided transfers.
struct RegionHandle {
  Bytes instance; // of the owner's engine
  uint32_t pid = 0; // for texts, as the next one
  std::string host;
  uint64_t id = 0;
  uint64_t secret = 0; // only holders of the handle know it
  uint64_t address = 0; // in the owner
  uint64_t size = 0; // bytes
  bool readOnly = false; // registered for reading
  std::string name;
  SharedPages pages; // where others, too, may have it mapped

  // "region "kv"", or with its number if it has no name.
  std::string title() const;
  // "region "kv" of pid 7 on host".
  std::string describe() const {
    return title() + " of pid " + std::to_string(pid) + " on " + host;
  }
};
Bytes encode(const RegionHandle& handle);
// Throws Error: truncated, oversized, or another protocol version.
RegionHandle decodeRegion(ByteSpan bytes);

// Memory of this process that is registered for one-sided transfers, from
// both sides. Its owner keeps it until the region has been taken out of the
// table. What is not const is guarded by the engine's lock.
class Region {
 public:
  Region(RegionHandle handle, MemoryView view, std::shared_ptr<void> keeper)
      : handle_(std::move(handle)), view_(view), keeper_(std::move(keeper)) {}

  const RegionHandle& handle() const {
    return handle_;
  }
  MemoryView view() const {
    return view_;
  }
  // Of the GPU that it is on; null: it is not.
  Accelerator* accelerator() const {
    return view_.accelerator;
  }
  // "region "kv" (4096 bytes)"
  std::string describe() const;

  // What this registrar has made of it; null: nothing yet.
  const void* registration(MemoryRegistrar* registrar) const {
    const auto found = registrations_.find(registrar);
    return found == registrations_.end() ? nullptr : found->second.get();
  }
  void keepRegistration(
      MemoryRegistrar* registrar,
      const std::shared_ptr<const void>& result) {
    if (!closing) {
      registrations_.try_emplace(registrar, result);
    }
  }

  // Memory of a GPU that this one can't enroll, which is tried once.
  bool refusedBy(MemoryRegistrar* registrar) const {
    return refused_.contains(registrar);
  }
  void noteRefused(MemoryRegistrar* registrar) {
    if (accelerator() != nullptr) {
      refused_.insert(registrar);
    }
  }

  // What nobody needs after its end; to be dropped outside of the lock.
  struct Remains {
    std::map<MemoryRegistrar*, std::shared_ptr<const void>> registration;
    std::shared_ptr<void> keeper;
  };
  Remains takeRemains() {
    return {std::exchange(registrations_, {}), std::exchange(keeper_, nullptr)};
  }

  size_t uses = 0; // by transfers of ours that go on
  size_t lent = 0; // to so many peers, who may be transferring, and to copies
                   // between GPUs and pinned memory for them
  size_t registering = 0; // by so many threads, who may touch the memory
  bool closing = false; // nobody gets it any more
  bool gone = false; // and nobody has it

 private:
  const RegionHandle handle_;
  const MemoryView view_;
  std::shared_ptr<void> keeper_;
  std::map<MemoryRegistrar*, std::shared_ptr<const void>> registrations_;
  std::set<MemoryRegistrar*> refused_;
};
using RegionPtr = std::shared_ptr<Region>;

// Every region of this process. Under the engine's lock.
class RegionTable {
 public:
  RegionTable(const PeerIdentity& self, std::function<void()> wake)
      : self_(self), wake_(std::move(wake)) {}

  RegionPtr add(
      MemoryView view,
      std::string name,
      std::shared_ptr<void> keeper,
      SharedPages pages = {});
  void remove(const Region& region) {
    regions_.erase(region.handle().id);
  }
  // Null: there is none, or it is closing.
  RegionPtr find(uint64_t id, uint64_t secret) const;
  std::vector<RegionPtr> lent() const;

  // Enrolling takes long, so it is left to a thread that may take its time,
  // which is woken.
  struct Wanted {
    RegionPtr region;
    MemoryRegistrar* registrar = nullptr;
  };
  void registerLater(const RegionPtr& region, MemoryRegistrar* registrar);
  std::vector<Wanted> takeWanted() {
    known_.clear();
    return std::exchange(wanted_, {});
  }

 private:
  const PeerIdentity& self_;
  const std::function<void()> wake_;
  std::map<uint64_t, RegionPtr> regions_;
  std::vector<Wanted> wanted_;
  std::set<std::pair<const Region*, MemoryRegistrar*>> known_; // in wanted_
  uint64_t nextId_ = 1;
};

} // namespace dlslime
