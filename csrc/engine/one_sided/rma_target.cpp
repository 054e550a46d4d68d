#include "engine/one_sided/rma_target.h"

#include <algorithm>

#include "engine/one_sided/frame_pieces.h"

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
      route_.connection != nullptr ? route_.connection->registrar() : nullptr;
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
  auto* const registrar = route_.connection->registrar();
  const auto* const registration =
      registrar != nullptr ? region.registration(registrar) : nullptr;
  auto* const gpus = region.accelerator();
  if (gpus != nullptr && registration == nullptr) {
    return out_.shares().show(*gpus, view, memory);
  }
  auto* const rma = route_.connection->rma();
  memory = rma != nullptr ? rma->reach(view, registration) : RemoteBuffer{};
  return true;
}

void RmaTarget::lend(const RegionPtr& region) {
  if (route_.connection == nullptr) {
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
    region->lend();
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

// Returns the lent region of a message; or null, and tells the peer.
RegionPtr
RmaTarget::lentOrTell(bool joined, uint64_t region, uint64_t transfer) {
  auto found = joined ? lent(region) : nullptr;
  if (!found) {
    tellEnd(
        out_,
        transfer,
        joined ? FinishStatus::kUnknownMemory : FinishStatus::kGroupGone);
  }
  return found;
}

void RmaTarget::onGetRequest(
    bool joined,
    const wire::GetRequest& request,
    ByteSpan payload) {
  if (const auto region = lentOrTell(joined, request.region, request.id)) {
    gets_.onRequest(request, region, payload);
  }
}

void RmaTarget::onPut(bool joined, const wire::Put& put, ByteSpan payload) {
  if (const auto region = lentOrTell(joined, put.region, put.id)) {
    puts_.onPut(put, region, payload);
  }
}

Placement
RmaTarget::placementOf(const wire::Put& put, ByteSpan begin, size_t size) {
  const auto region = lent(put.region);
  return region ? puts_.placementOf(put, *region, begin, size) : Placement{};
}

void RmaTarget::onPlacedPut(bool joined, const wire::Put& put, Fault fault) {
  if (lentOrTell(joined, put.region, put.id)) {
    puts_.onEnded(put, fault);
  }
}

bool RmaTarget::flush() {
  bool any = false;
  if (route_.connection != nullptr) {
    any = lendWaiting();
    any |= puts_.answerArrived();
  }
  return gets_.flush() || any;
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
  puts_.forget(region);
  gets_.dropThose(found->second);
  found->second->giveBack();
  lent_.erase(found);
  if (lent_.empty()) {
    puts_.forgetTooManyFailed();
  }
}

void RmaTarget::addShownInUse(std::set<uint64_t>& ids) const {
  for (const auto& [id, region] : lent_) {
    out_.shares().addShown(region->view(), ids);
  }
}

void RmaTarget::fail() {
  for (const auto& [id, region] : lent_) {
    region->giveBack();
  }
  lent_.clear();
  registering_.clear();
  waiting_.clear();
  gets_.clear();
  puts_.clear();
}

} // namespace dlslime
