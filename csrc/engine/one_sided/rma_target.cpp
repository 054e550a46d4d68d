#include "engine/one_sided/rma_target.h"

#include <algorithm>

namespace dlslime {

RegionPtr RmaTarget::lent(uint64_t id) const {
  const auto found = lent_.find(id);
  return found == lent_.end() ? nullptr : found->second;
}

void RmaTarget::onResolve(const MessageHeader& header) {
  const auto region = regions_.find(header.id, header.address);
  if (!region) {
    answer(MessageType::kResolved, header.id, FinishStatus::kUnknownMemory);
    return;
  }
  auto* const registrar =
      connection_ != nullptr ? connection_->registrar() : nullptr;
  if (registrar != nullptr && !region->refusedBy(registrar) &&
      region->registration(registrar) == nullptr) {
    if (enrolling_.try_emplace(header.id, region).second) {
      regions_.registerLater(region, registrar);
    }
    return;
  }
  lend(region);
}

// Where the peer gets at it. False: there is no room now to tell it how.
bool RmaTarget::reach(const Region& region, RemoteBuffer& memory) {
  const auto view = region.view();
  auto* const registrar = connection_->registrar();
  const void* const registration =
      registrar != nullptr ? region.registration(registrar) : nullptr;
  auto* const gpus = region.accelerator();
  if (gpus != nullptr && registration == nullptr) {
    return out_.show(*gpus, view, memory);
  }
  memory = connection_->reach(view, registration);
  return true;
}

void RmaTarget::lend(const RegionPtr& region) {
  if (connection_ == nullptr) {
    return; // it asks again
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
  MessageHeader resolved;
  resolved.type = MessageType::kResolved;
  resolved.id = handle.id;
  resolved.length = handle.size;
  setRemote(resolved, memory);
  resolved.address = handle.address;
  out_.sendControl(resolved);
}

// True if there was any.
bool RmaTarget::lendWaiting() {
  const auto waiting = std::exchange(waiting_, {});
  for (const auto& region : waiting) {
    lendOrRefuse(region);
  }
  return waiting_.size() != waiting.size();
}

void RmaTarget::lendOrRefuse(const RegionPtr& region) {
  region->closing ? answer(
                        MessageType::kResolved,
                        region->handle().id,
                        FinishStatus::kUnknownMemory)
                  : lend(region);
}

// Without the NICs' help it is served in messages.
void RmaTarget::onRegistered(
    const RegionPtr& region,
    const Status& /*status*/) {
  const auto waits = enrolling_.find(region->handle().id);
  if (waits != enrolling_.end()) {
    lendOrRefuse(region);
    enrolling_.erase(waits);
  }
}

void RmaTarget::answer(
    MessageType type,
    uint64_t id,
    FinishStatus status,
    Fault fault) {
  MessageHeader answer;
  answer.slot = static_cast<uint16_t>(fault);
  answer.type = type;
  answer.id = id;
  answer.status = status;
  out_.sendControl(answer);
}

void RmaTarget::refuse(const MessageHeader& header) {
  if (header.type == MessageType::kResolve) {
    answer(MessageType::kResolved, header.id, FinishStatus::kGroupGone);
  } else {
    answer(MessageType::kPutAck, header.id, FinishStatus::kGroupGone);
  }
}

void RmaTarget::recall(const Region& region) {
  const auto id = region.handle().id;
  if (!lent_.contains(id)) {
    return;
  }
  MessageHeader forget;
  forget.type = MessageType::kRevokeKey;
  forget.id = id;
  out_.sendControl(forget);
}

void RmaTarget::onForgotten(const MessageHeader& header) {
  const auto found = lent_.find(header.id);
  if (found == lent_.end()) {
    return;
  }
  failedPuts_.erase(
      failedPuts_.lower_bound({header.id, 0}),
      failedPuts_.upper_bound({header.id, UINT64_MAX}));
  // What it has asked for, and given up since.
  for (auto next = ofRegions_.lower_bound({header.id, 0});
       next != ofRegions_.end() && next->first == header.id;) {
    const auto id = (next++)->second;
    const auto stream = streams_.find(id);
    if (stream != streams_.end() && stream->second.region == found->second) {
      drop(id);
    } else { // it was not begun, for want of memory
      ofRegions_.erase({header.id, id});
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
  enrolling_.clear();
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
