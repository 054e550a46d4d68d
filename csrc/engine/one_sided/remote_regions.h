#pragma once

#include <map>

#include "engine/one_sided/active_part.h"
#include "engine/progress/engine_mutex.h"
#include "engine/two_sided/outbound.h"
#include "engine/wire/one_sided_messages.h"

namespace dlslime {

// The peer's regions, as far as transfers have asked the owner for them. Under
// the engine's lock.
class RemoteRegions {
 public:
  RemoteRegions(Outbound& out, const PeerIdentity& peer)
      : out_(out), peer_(peer) {}

  // Returns why to refuse a part without asking the owner; ok: the owner
  // decides.
  Status refusal(const Transfer::Part& part) const REQUIRES(kEngineLock);
  struct Found {
    bool resolved = false; // false: the owner is to be asked
    bool usable = false; // false: the owner has no such region (any more)
    RemoteBuffer memory{};
  };
  Found find(const RegionHandle& remote) const REQUIRES(kEngineLock);
  // Asks the owner for the region of a part, unless asked already.
  void ask(const ActivePart& active) REQUIRES(kEngineLock);
  // Returns whether the owner's answer still holds.
  bool holds(uint64_t region) const REQUIRES(kEngineLock);
  // Notes the owner's answer; returns the group named by the question, by the
  // peer's id.
  uint32_t onResolved(const wire::Resolved& resolved) REQUIRES(kEngineLock);
  // Gives the region back, if need be after the last release().
  void onRevokeKey(const wire::RevokeKey& revoke) REQUIRES(kEngineLock);
  // Notes that a part may touch the region, from now until release().
  void use(uint64_t region) REQUIRES(kEngineLock) {
    ++known_[region].uses;
  }
  void release(uint64_t region) REQUIRES(kEngineLock);
  // Asks for all regions again, because the connection is new.
  void askAgain() REQUIRES(kEngineLock);
  void clear() REQUIRES(kEngineLock) {
    known_.clear();
  }

 private:
  struct Known {
    uint64_t secret = 0;
    bool asked = false; // on the present connection, and not refused
    uint32_t askedFor = 0; // group in the Resolve, by the peer's id
    bool resolved = false;
    bool forgetting = false; // the owner wants the region back
    size_t uses = 0; // parts that may touch the region
    RemoteBuffer memory;
    uint64_t size = 0; // bytes
  };
  void giveBack(uint64_t region) REQUIRES(kEngineLock);

  Outbound& out_;
  const PeerIdentity& peer_;
  std::map<uint64_t, Known> known_; // by the owner's id of the region
};

// Returns the refusal of a region that the owner does not have any more.
Status unknownRegion(const RegionHandle& remote);

} // namespace dlslime
