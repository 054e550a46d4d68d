#include "engine/one_sided/rma_target.h"

#include <algorithm>

namespace dlslime {

RegionPtr RmaTarget::lent(uint64_t id) const {
  const auto found = lent_.find(id);
  return found == lent_.end() ? nullptr : found->second;
}

void RmaTarget::onResolve(bool joined, const wire::Resolve& resolve) {
  if (!joined) {
    refuse(resolve.region, FinishStatus::kGroupGone);
    return;
  }
  const auto region = regions_.find(resolve.region, resolve.secret);
  if (!region) {
    refuse(resolve.region, FinishStatus::kUnknownMemory);
    return;
  }
  auto* const registrar =
      connection_ != nullptr ? connection_->registrar() : nullptr;
  if (registrar != nullptr && !region->refusedBy(registrar) &&
      region->registration(registrar) == nullptr) {
    if (registering_.try_emplace(resolve.region, region).second) {
      regions_.registerLater(region, registrar);
    }
    return;
  }
  lend(region);
}

// Sets `memory` to the peer's way of reaching the region. Returns false if
// there is no room now to show memory of a GPU to the peer.
bool RmaTarget::reach(const Region& region, RemoteBuffer& memory) {
  const auto view = region.view();
  auto* const registrar = connection_->registrar();
  const auto* const registration =
      registrar != nullptr ? region.registration(registrar) : nullptr;
  auto* const gpus = region.accelerator();
  if (gpus != nullptr && registration == nullptr) {
    return out_.show(*gpus, view, memory);
  }
  auto* const rma = connection_->rma();
  memory = rma != nullptr ? rma->reach(view, registration) : RemoteBuffer{};
  return true;
}

void RmaTarget::lend(const RegionPtr& region) {
  if (connection_ == nullptr) {
    return; // the peer asks again
  }
  RemoteBuffer memory;
  if (!reach(*region, memory)) {
    if (std::find(waiting_.begin(), waiting_.end(), region) == waiting_.end()) {
      waiting_.push_back(region);
    }
    return;
  }
  const auto& handle = region->handle();
  if (lent_.try_emplace(handle.id, region).second) {
    ++region->lent;
  }
  memory.address = handle.address;
  out_.sendControl(
      wire::Resolved{FinishStatus::kOk, handle.id, handle.size, memory});
}

// Answers for regions that waited for room. Returns true if any was answered.
bool RmaTarget::lendWaiting() {
  const auto waiting = std::exchange(waiting_, {});
  for (const auto& region : waiting) {
    lendOrRefuse(region);
  }
  return waiting_.size() != waiting.size();
}

void RmaTarget::lendOrRefuse(const RegionPtr& region) {
  region->closing ? refuse(region->handle().id, FinishStatus::kUnknownMemory)
                  : lend(region);
}

// Lends the region even if registering has failed: messages then serve the
// peer.
void RmaTarget::onRegistered(
    const RegionPtr& region,
    const Status& /*status*/) {
  const auto waits = registering_.find(region->handle().id);
  if (waits != registering_.end()) {
    lendOrRefuse(region);
    registering_.erase(waits);
  }
}

// Tells the peer that the region is not lent.
void RmaTarget::refuse(uint64_t region, FinishStatus why) {
  out_.sendControl(wire::Resolved{why, region, 0, {}});
}

// Tells the peer how a write has ended, or why a read fails.
void RmaTarget::end(uint64_t id, FinishStatus status, Fault fault) {
  out_.sendControl(wire::PutAck{status, id, fault});
}

void RmaTarget::recall(const Region& region) {
  const auto id = region.handle().id;
  if (lent_.contains(id)) {
    out_.sendControl(wire::RevokeKey{id});
  }
}

void RmaTarget::onKeyRevoked(const wire::KeyRevoked& revoked) {
  const auto region = revoked.region;
  const auto found = lent_.find(region);
  if (found == lent_.end()) {
    return;
  }
  failedPuts_.erase(
      failedPuts_.lower_bound({region, 0}),
      failedPuts_.upper_bound({region, UINT64_MAX}));
  // Drops the reads that the peer began and has given up since.
  for (auto next = ofRegions_.lower_bound({region, 0});
       next != ofRegions_.end() && next->first == region;) {
    const auto id = (next++)->second;
    const auto stream = streams_.find(id);
    if (stream != streams_.end() && stream->second.region == found->second) {
      drop(id);
    } else { // the stream was never made, for want of memory
      ofRegions_.erase({region, id});
    }
  }
  --found->second->lent;
  lent_.erase(found);
  tooManyFailed_ &= !lent_.empty();
}

void RmaTarget::addShownInUse(std::set<uint64_t>& ids) const {
  for (const auto& [id, region] : lent_) {
    out_.addShown(region->view(), ids);
  }
}

void RmaTarget::fail() {
  for (const auto& [id, region] : lent_) {
    --region->lent;
  }
  lent_.clear();
  registering_.clear();
  waiting_.clear();
  streams_.clear();
  ofRegions_.clear();
  turns_.clear();
  asked_ = 0;
  arriving_.clear();
  failedPuts_.clear();
  frame_.clear();
}

} // namespace dlslime
