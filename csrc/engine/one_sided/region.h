#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/library/api.h"
#include "base/memory/shared_pages.h"
#include "engine/progress/engine_mutex.h"
#include "interface/accelerator.h"
#include "interface/transport.h"

namespace dlslime {

// Description of registered memory for a process that transfers from or to the
// memory.
struct DLSLIME_API RegionHandle {
  Bytes instance; // of the owner's engine
  uint32_t pid = 0; // for texts
  std::string host; // for texts
  uint64_t id = 0;
  uint64_t secret = 0; // known only to holders of the handle
  uint64_t address = 0; // in the owner
  uint64_t size = 0; // bytes
  bool readOnly = false; // registered for reading
  std::string name;
  SharedPages pages; // place in a file that more processes may have mapped

  // Returns "region "kv"", or "region 7" for a region without a name.
  std::string title() const;
  // Returns "region "kv" of pid 7 on host".
  std::string describe() const {
    return title() + " of pid " + std::to_string(pid) + " on " + host;
  }
};
DLSLIME_API Bytes encode(const RegionHandle& handle);
// Throws Error if the bytes are truncated, oversized, or of a different
// protocol version.
DLSLIME_API RegionHandle decodeRegion(ByteSpan bytes);

// Memory of our process registered for one-sided transfers, by us or by peers.
// The owner keeps the memory until the region has left the table. Under the
// engine's lock.
class DLSLIME_API Region {
 public:
  Region(RegionHandle handle, MemoryView view, std::shared_ptr<void> keeper)
      : handle_(std::move(handle)), view_(view), keeper_(std::move(keeper)) {}

  const RegionHandle& handle() const {
    return handle_;
  }
  MemoryView view() const {
    return view_;
  }
  // Returns the accelerator of memory on a GPU; null for memory of processors.
  Accelerator* accelerator() const {
    return view_.accelerator;
  }
  // Returns "region "kv" (4096 bytes)".
  std::string describe() const;

  // Returns the registration made by the registrar; null if none was made yet.
  const Registration* registration(MemoryRegistrar* registrar) const
      REQUIRES(kEngineLock) {
    const auto found = registrations_.find(registrar);
    return found == registrations_.end() ? nullptr : found->second.get();
  }
  void keepRegistration(
      MemoryRegistrar* registrar,
      const RegistrationPtr& result) REQUIRES(kEngineLock) {
    if (!closing) {
      registrations_.try_emplace(registrar, result);
    }
  }

  // Returns true if the registrar has refused memory of a GPU; registering is
  // tried only once.
  bool refusedBy(MemoryRegistrar* registrar) const REQUIRES(kEngineLock) {
    return refused_.contains(registrar);
  }
  void noteRefused(MemoryRegistrar* registrar) REQUIRES(kEngineLock) {
    if (accelerator() != nullptr) {
      refused_.insert(registrar);
    }
  }

  // Registrations and keeper of a region at the end, to be dropped outside of
  // the lock.
  struct Remains {
    std::map<MemoryRegistrar*, RegistrationPtr> registration;
    std::shared_ptr<void> keeper;
  };
  Remains takeRemains() REQUIRES(kEngineLock) {
    return {std::exchange(registrations_, {}), std::exchange(keeper_, nullptr)};
  }

  // Counts a peer that may be transferring, or a copy between a GPU and pinned
  // memory on behalf of a peer.
  void lend() REQUIRES(kEngineLock) {
    ++lent_;
  }
  void giveBack() REQUIRES(kEngineLock) {
    --lent_;
    tellIfReturned();
  }
  bool lent() const REQUIRES(kEngineLock) {
    return lent_ > 0;
  }
  // Counts a registration under way, which touches the memory.
  void beginRegistering() REQUIRES(kEngineLock) {
    ++registering_;
  }
  void endRegistering() REQUIRES(kEngineLock) {
    --registering_;
    tellIfReturned();
  }
  // True if no peer and no registration touches the memory.
  bool returned() const REQUIRES(kEngineLock) {
    return lent_ == 0 && registering_ == 0;
  }
  // Lends the region again, because a deregistration was given up.
  void reopen() REQUIRES(kEngineLock) {
    closing = false;
    tellChange();
  }
  // Called once, when the region has been returned or opened again.
  std::function<void()> onChange GUARDED_BY(kEngineLock);

  size_t uses GUARDED_BY(kEngineLock) = 0; // unfinished transfers of ours
  // No longer lent, and closed to new transfers.
  bool closing GUARDED_BY(kEngineLock) = false;
  // Deregistered: out of the table, and with no peer.
  bool gone GUARDED_BY(kEngineLock) = false;

 private:
  void tellIfReturned() REQUIRES(kEngineLock) {
    if (returned()) {
      tellChange();
    }
  }
  void tellChange() REQUIRES(kEngineLock) {
    if (onChange) {
      std::exchange(onChange, nullptr)();
    }
  }

  const RegionHandle handle_;
  const MemoryView view_;
  std::shared_ptr<void> keeper_;
  std::map<MemoryRegistrar*, RegistrationPtr> registrations_;
  std::set<MemoryRegistrar*> refused_;
  size_t lent_ = 0, registering_ = 0;
};
using RegionPtr = std::shared_ptr<Region>;

// All regions of the process. Under the engine's lock.
class RegionTable {
 public:
  RegionTable(const PeerIdentity& self, std::function<void()> wake)
      : self_(self), wake_(std::move(wake)) {}

  RegionPtr add(
      MemoryView view,
      std::string name,
      std::shared_ptr<void> keeper,
      SharedPages pages = {}) REQUIRES(kEngineLock);
  void remove(const Region& region) REQUIRES(kEngineLock) {
    regions_.erase(region.handle().id);
  }
  // Returns null if no region has the id and the secret, or if the region is
  // closing.
  RegionPtr find(uint64_t id, uint64_t secret) const REQUIRES(kEngineLock);
  std::vector<RegionPtr> lent() const REQUIRES(kEngineLock);

  // A registration wanted by a channel, left to the registration thread because
  // registering takes long.
  struct Wanted {
    RegionPtr region;
    MemoryRegistrar* registrar = nullptr;
  };
  // Leaves the registration to the registration thread, and wakes the thread.
  void registerLater(const RegionPtr& region, MemoryRegistrar* registrar)
      REQUIRES(kEngineLock);
  std::vector<Wanted> takeWanted() REQUIRES(kEngineLock) {
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
