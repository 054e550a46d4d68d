#include "engine/one_sided/remote_regions.h"

#include <string>
#include <utility>

namespace dlslime {

Status unknownRegion(const RegionHandle& remote) {
  return {
      ErrorCode::kInvalidArgument,
      remote.describe() +
          " is not registered any more: the owner has deregistered the region"};
}

Status RemoteRegions::refusal(const Transfer::Part& part) const {
  if (part.remote->instance != peer_.instance) {
    return {
        ErrorCode::kInvalidArgument,
        "the handle is of " + part.remote->describe() +
            ", and the peer is pid " + std::to_string(peer_.pid) + " on " +
            peer_.host + ": that process has ended, or is another rank"};
  }
  if (part.local->closing) {
    return {
        ErrorCode::kInvalidArgument,
        "the local " + part.local->describe() + " has been deregistered"};
  }
  const auto known = known_.find(part.remote->id);
  const bool gone = known != known_.end() &&
      (known->second.secret != part.remote->secret || known->second.forgetting);
  return gone ? unknownRegion(*part.remote) : Status();
}

RemoteRegions::Found RemoteRegions::find(const RegionHandle& remote) const {
  const auto found = known_.find(remote.id);
  if (found == known_.end() || !found->second.resolved) {
    return {};
  }
  const auto& known = found->second;
  const bool same =
      known.memory.address == remote.address && known.size == remote.size;
  return {true, same && !known.forgetting, known.memory};
}

void RemoteRegions::ask(const ActivePart& active) {
  const auto& remote = *active.part().remote;
  auto& known = known_[remote.id];
  known.secret = remote.secret;
  if (std::exchange(known.asked, true)) {
    return;
  }
  const auto& target = active.target;
  known.askedFor = target.group;
  out_.sendControl(
      wire::Resolve{target.group, target.source, remote.id, remote.secret});
}

bool RemoteRegions::holds(uint64_t region) const {
  const auto known = known_.find(region);
  return known != known_.end() && known->second.resolved &&
      !known->second.forgetting;
}

uint32_t RemoteRegions::onResolved(const wire::Resolved& resolved) {
  const auto found = known_.find(resolved.region);
  if (found == known_.end()) {
    return 0; // revoked meanwhile
  }
  const bool good = resolved.status == FinishStatus::kOk;
  auto& known = found->second;
  const auto askedFor = known.askedFor;
  known.asked = good;
  known.resolved = good;
  known.memory = resolved.memory;
  known.size = resolved.size;
  if (!good && known.uses == 0) {
    known_.erase(found);
  }
  return askedFor;
}

void RemoteRegions::onRevokeKey(const wire::RevokeKey& revoke) {
  const auto found = known_.find(revoke.region);
  if (found != known_.end() && found->second.uses > 0) {
    found->second.forgetting = true; // release() answers
    return;
  }
  giveBack(revoke.region);
}

void RemoteRegions::giveBack(uint64_t region) {
  known_.erase(region);
  out_.sendControl(wire::KeyRevoked{region});
}

void RemoteRegions::release(uint64_t region) {
  const auto found = known_.find(region);
  if (found != known_.end() && --found->second.uses == 0 &&
      found->second.forgetting) {
    giveBack(region);
  }
}

void RemoteRegions::askAgain() {
  for (auto& [id, known] : known_) {
    known.asked = false;
    known.resolved = false;
  }
}

} // namespace dlslime
