#include "engine/one_sided/rma_initiator.h"

#include <algorithm>
#include <set>

#include "engine/progress/ends_anyway.h"

namespace dlslime {

namespace {

Status unknown(const RegionHandle& remote) {
  return {
      ErrorCode::kInvalidArgument,
      remote.describe() +
          " is not registered any more: the owner has deregistered the region"};
}

} // namespace

// Returns why to refuse a part without asking the owner; ok: the owner decides.
Status RmaInitiator::refusal(const Transfer::Part& part) const {
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
  return gone ? unknown(*part.remote) : Status();
}

void RmaInitiator::start(const TransferPtr& transfer, Target target) {
  transfer->stage = Operation::Stage::kTransferring;
  transfer->holder = this;
  transfer->setResult(transfer->peer(), transfer->totalBytes());
  for (const auto& part : transfer->parts()) {
    if (transfer->problem.ok()) {
      transfer->problem = refusal(part);
    }
  }
  transfer->open = transfer->problem.ok() ? transfer->parts().size() : 0;
  if (transfer->note) {
    notes_.begin(transfer);
  }
  if (transfer->open == 0) {
    finish(transfer);
    return;
  }
  auto& ids = transfer->activeIds;
  try {
    for (size_t part = 0; part < transfer->parts().size(); ++part) {
      Active active;
      active.transfer = transfer;
      active.part = part;
      active.target = target;
      ids.push_back(active_.insert(std::move(active)));
    }
  } catch (const std::bad_alloc&) {
    notes_.remove(*transfer);
    throw;
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    tryStart(ids[i]);
  }
}

void RmaInitiator::askFor(const Active& active, Known& known) {
  const auto& remote = *partOf(active).remote;
  known.secret = remote.secret;
  if (std::exchange(known.asked, true)) {
    return;
  }
  known.askedFor = active.target.group;
  const auto& target = active.target;
  out_.sendControl(
      wire::Resolve{target.group, target.source, remote.id, remote.secret});
}

void RmaInitiator::tryStart(uint64_t id) {
  auto* const active = active_.find(id);
  if (active == nullptr || active->state != State::kResolving || severed_ ||
      connection_ == nullptr) {
    return; // ended, under way, or left to resume()
  }
  const auto& part = partOf(*active);
  auto& known = known_[part.remote->id];
  if (!known.resolved) {
    resolving_[part.remote->id].push_back(id);
    askFor(*active, known);
    return;
  }
  if (known.memory.address != part.remote->address ||
      known.size != part.remote->size || known.forgetting) {
    end(id, unknown(*part.remote));
    return;
  }
  auto* const registrar = connection_->registrar();
  const bool reachable = known.memory.slot < RemoteBuffer::kOnGpu &&
      (!part.local->view().onDevice() ||
       (registrar != nullptr && !part.local->refusedBy(registrar)));
  if (reachable) {
    startByRoute(id, known.memory);
  } else if (!startByGpu(id, known.memory)) {
    startFrames(id);
  }
}

// Copies between two GPUs of one host; returns false if the GPUs can't.
bool RmaInitiator::startByGpu(uint64_t id, const RemoteBuffer& memory) {
  auto& active = *active_.find(id);
  const auto& part = partOf(active);
  const auto view = part.local->view();
  const auto& transfer = active.transfer;
  const bool begun = view.onDevice() &&
      gpus_.move(
          *part.local->accelerator(),
          view.device,
          memory,
          transfer->write(),
          part.pieces,
          [this, id](const Status& status) { onTransferred(id, status); });
  if (begun) {
    active.state = State::kByGpu;
    ++known_[part.remote->id].uses;
  }
  return begun;
}

void RmaInitiator::startByRoute(uint64_t id, const RemoteBuffer& memory) {
  auto& active = *active_.find(id);
  const auto& part = partOf(active);
  auto* const rma = connection_->rma();
  if (rma == nullptr || !rma->direct(memory, nullptr)) {
    startFrames(id);
    return;
  }
  auto* const registrar = connection_->registrar();
  const auto* const registration =
      registrar != nullptr ? part.local->registration(registrar) : nullptr;
  if (registrar != nullptr && registration == nullptr) {
    registering_[part.local.get()].push_back(id);
    regions_.registerLater(part.local, registrar);
    return;
  }
  if (!rma->direct(memory, registration)) {
    startFrames(id);
    return;
  }
  active.state = State::kMoving;
  ++known_[part.remote->id].uses;
  rma->start({id, active.transfer->write(), part.pieces, memory, registration});
}

void RmaInitiator::startFrames(uint64_t id) {
  auto& active = *active_.find(id);
  const auto& local = *partOf(active).local;
  active.state = active.transfer->write() ? State::kPutting : State::kFetching;
  if (active.state == State::kPutting && local.view().onDevice()) {
    active.staged = std::make_unique<StagedSource>(
        *local.accelerator(),
        local.view().device,
        completions_.userOf(active.transfer));
  }
  ++known_[partOf(active).remote->id].uses;
  sending_.push_back(id);
  flush();
}

void RmaInitiator::onRegistered(const Region& region, const Status& status) {
  const auto* const local = &region;
  visit(registering_, local, [&](uint64_t id, const Active& active) {
    const auto known = known_.find(partOf(active).remote->id);
    const bool there = known != known_.end() && known->second.resolved &&
        !known->second.forgetting && !severed_;
    if (!status.ok() && there) {
      startFrames(id); // slower, but it works
    } else {
      tryStart(id); // may have to ask the owner again
    }
  });
}

template <typename Key, typename Visit>
void RmaInitiator::visit(
    std::map<Key, Waiting>& all,
    const Key& key,
    const Visit& visit) {
  auto waiting = all.extract(key);
  if (waiting.empty()) {
    return;
  }
  for (const auto id : waiting.mapped()) {
    const auto* const active = active_.find(id);
    if (active != nullptr && active->state == State::kResolving) {
      visit(id, *active);
    }
  }
}

void RmaInitiator::onResolved(const wire::Resolved& resolved) {
  const bool good = resolved.status == FinishStatus::kOk;
  uint32_t askedFor = 0; // group in the Resolve, perhaps gone
  const auto found = known_.find(resolved.region);
  if (found != known_.end()) { // else revoked meanwhile
    auto& known = found->second;
    askedFor = known.askedFor;
    known.asked = good;
    known.resolved = good;
    known.memory = resolved.memory;
    known.size = resolved.size;
    if (!good && known.uses == 0) {
      known_.erase(found);
    }
  }
  const bool groupGone = resolved.status == FinishStatus::kGroupGone;
  visit(resolving_, resolved.region, [&](uint64_t id, const Active& active) {
    if (good || (groupGone && active.target.group != askedFor)) {
      tryStart(id);
      return;
    }
    const auto& transfer = *active.transfer;
    end(id,
        groupGone
            ? Status(
                  ErrorCode::kPeerFailed,
                  transfer.nameOf(transfer.peer()) + " has left the group")
            : unknown(*partOf(active).remote));
  });
}

void RmaInitiator::onRevokeKey(const wire::RevokeKey& revoke) {
  const auto found = known_.find(revoke.region);
  if (found != known_.end() && found->second.uses > 0) {
    found->second.forgetting = true; // release() answers
    return;
  }
  giveBack(revoke.region);
}

void RmaInitiator::giveBack(uint64_t regionId) {
  known_.erase(regionId);
  out_.sendControl(wire::KeyRevoked{regionId});
}

void RmaInitiator::release(uint64_t regionId) {
  const auto found = known_.find(regionId);
  if (found != known_.end() && --found->second.uses == 0 &&
      found->second.forgetting) {
    giveBack(regionId);
  }
}

void RmaInitiator::onTransferred(uint64_t id, const Status& status) {
  auto* const active = active_.find(id);
  if (active == nullptr) {
    return;
  }
  const auto& transfer = *active->transfer;
  if (!status.ok() && severed_ && transfer.cancelStatus.ok() &&
      transfer.problem.ok()) {
    restart(*active);
  } else if (
      status.code() == ErrorCode::kDenied && transfer.cancelStatus.ok() &&
      transfer.problem.ok()) {
    const auto region = partOf(*active).remote->id;
    startFrames(id); // slower, and needs no permission
    release(region); // only now: may give the region back
  } else {
    end(id, faulty(*active, status));
  }
}

// Resets a part, so that another connection begins the part anew.
void RmaInitiator::restart(Active& active) {
  active.state = State::kResolving;
  release(partOf(active).remote->id);
}

void RmaInitiator::end(uint64_t id, const Status& status) {
  const auto active = active_.take(id);
  const auto& part = partOf(active);
  const auto& transfer = active.transfer;
  const bool first = !status.ok() && transfer->problem.ok();
  if (first) {
    transfer->problem = status;
  }
  const bool last = --transfer->open == 0;
  const EndsAnyway ends(completions_, last ? transfer : nullptr);
  std::erase(sending_, id);
  framed_ = framed_ == id ? 0 : framed_;
  if (active.state != State::kResolving) {
    release(part.remote->id);
  }
  if (last) {
    finish(transfer);
  } else if (first) {
    stop(transfer, status);
  }
}

// Stops the parts that are still under way.
void RmaInitiator::stop(const TransferPtr& transfer, const Status& why) {
  for (const auto id : transfer->activeIds) {
    const auto* const active = active_.find(id);
    if (active == nullptr) {
      continue;
    }
    if (active->state == State::kByGpu) {
      continue; // ends soon
    }
    if (active->state != State::kMoving) {
      end(id, why);
    } else if (connection_ != nullptr) {
      connection_->rma()->stop(id);
    } // else quieted() ends the part
  }
}

void RmaInitiator::finish(const TransferPtr& transfer) {
  const auto groupKey = transfer->groupKey;
  if (!transfer->problem.ok()) {
    finishBadly(transfer);
  } else if (transfer->note) {
    transfer->bytesThere = true;
  } else {
    completions_.finish(transfer, {});
    return;
  }
  sendNotes(groupKey);
}

void RmaInitiator::finishBadly(const TransferPtr& transfer) {
  notes_.remove(*transfer);
  completions_.finish(
      transfer,
      !transfer->cancelStatus.ok() ? transfer->cancelStatus
                                   : Status(
                                         transfer->problem.code(),
                                         transfer->describe() + " failed: " +
                                             transfer->problem.message()));
}

// Sends the group's notes that are due, in order.
void RmaInitiator::sendNotes(uint64_t groupKey) {
  while (const auto transfer = notes_.next(groupKey)) {
    const EndsAnyway ends(completions_, transfer);
    transfer->note->follower = transfer;
    sendNote_(transfer);
  }
}

void RmaInitiator::cancel(const OperationPtr& operation, const Status& why) {
  const auto transfer = std::static_pointer_cast<Transfer>(operation);
  if (!transfer->cancelStatus.ok()) {
    return;
  }
  transfer->cancelStatus = why;
  if (transfer->bytesThere && transfer->note->follower == nullptr) {
    finishBadly(transfer); // waits only for earlier notes
    sendNotes(transfer->groupKey);
  } else {
    stop(transfer, why);
  }
}

std::vector<OperationPtr> RmaInitiator::pending(uint64_t groupKey) const {
  std::vector<OperationPtr> found;
  std::set<const Transfer*> seen;
  auto& all = const_cast<Slab<Active>&>(active_);
  for (const auto id : active_.ids()) {
    const auto& transfer = all.find(id)->transfer;
    if (transfer->groupKey == groupKey && seen.insert(transfer.get()).second) {
      found.push_back(transfer);
    }
  }
  notes_.visitWaiting(
      groupKey, [&](const TransferPtr& waiting) { found.push_back(waiting); });
  return found;
}

} // namespace dlslime
