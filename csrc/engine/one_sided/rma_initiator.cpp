#include "engine/one_sided/rma_initiator.h"

#include <algorithm>
#include <set>

#include "engine/progress/ends_anyway.h"

namespace dlslime {

void RmaInitiator::start(const TransferPtr& transfer, Target target) {
  transfer->stage = Operation::Stage::kTransferring;
  transfer->holder = this;
  transfer->setResult(transfer->peer(), transfer->totalBytes());
  for (const auto& part : transfer->parts()) {
    if (transfer->problem.ok()) {
      transfer->problem = regions_.refusal(part);
    }
  }
  transfer->open = transfer->problem.ok() ? transfer->parts().size() : 0;
  finisher_.begin(transfer);
  if (transfer->open == 0) {
    finisher_.finish(transfer);
    return;
  }
  auto& ids = transfer->activeIds;
  try {
    for (size_t part = 0; part < transfer->parts().size(); ++part) {
      ActivePart active;
      active.transfer = transfer;
      active.index = part;
      active.target = target;
      ids.push_back(parts_.insert(std::move(active)));
    }
  } catch (const std::bad_alloc&) {
    finisher_.forget(*transfer);
    throw;
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    tryStart(ids[i]);
  }
}

void RmaInitiator::tryStart(uint64_t id) {
  auto* const active = parts_.find(id);
  if (active == nullptr || active->state != State::kResolving ||
      !route_.usable()) {
    return; // ended, under way, or left to resume()
  }
  const auto& part = active->part();
  const auto found = regions_.find(*part.remote);
  if (!found.resolved) {
    resolving_.add(part.remote->id, id);
    regions_.ask(*active);
    return;
  }
  if (!found.usable) {
    end(id, unknownRegion(*part.remote));
    return;
  }
  auto* const registrar = route_.connection->registrar();
  const bool reachable = found.memory.slot < RemoteBuffer::kOnGpu &&
      (!part.local->view().onDevice() ||
       (registrar != nullptr && !part.local->refusedBy(registrar)));
  if (reachable) {
    startByRoute(id, found.memory);
  } else if (!startByGpu(id, found.memory)) {
    startFrames(id);
  }
}

// Copies between two GPUs of one host; returns false if the GPUs can't.
bool RmaInitiator::startByGpu(uint64_t id, const RemoteBuffer& memory) {
  auto& active = *parts_.find(id);
  const auto& part = active.part();
  const auto view = part.local->view();
  const auto& transfer = active.transfer;
  const bool begun = view.onDevice() &&
      gpus_.move(
          *part.local->accelerator(),
          view.device,
          memory,
          transfer->write(),
          part.pieces,
          [this, id](const Status& status)
              REQUIRES(kEngineLock) { onTransferred(id, status); });
  if (begun) {
    active.state = State::kByGpu;
    regions_.use(part.remote->id);
  }
  return begun;
}

void RmaInitiator::startByRoute(uint64_t id, const RemoteBuffer& memory) {
  auto& active = *parts_.find(id);
  const auto& part = active.part();
  auto* const rma = route_.connection->rma();
  if (rma == nullptr || !rma->direct(memory, nullptr)) {
    startFrames(id);
    return;
  }
  auto* const registrar = route_.connection->registrar();
  const auto* const registration =
      registrar != nullptr ? part.local->registration(registrar) : nullptr;
  if (registrar != nullptr && registration == nullptr) {
    registering_.add(part.local.get(), id);
    localRegions_.registerLater(part.local, registrar);
    return;
  }
  if (!rma->direct(memory, registration)) {
    startFrames(id);
    return;
  }
  active.state = State::kMoving;
  regions_.use(part.remote->id);
  rma->start({id, active.transfer->write(), part.pieces, memory, registration});
}

void RmaInitiator::startFrames(uint64_t id) {
  auto& active = *parts_.find(id);
  const auto& local = *active.part().local;
  active.state = active.transfer->write() ? State::kPutting : State::kFetching;
  if (active.state == State::kPutting && local.view().onDevice()) {
    active.staged = std::make_unique<StagedSource>(
        *local.accelerator(),
        local.view().device,
        completions_.userOf(active.transfer));
  }
  regions_.use(active.part().remote->id);
  sender_.add(id);
  flush();
}

void RmaInitiator::onRegistered(const Region& region, const Status& status) {
  registering_.take(
      &region,
      parts_,
      [&](uint64_t id, const ActivePart& active) REQUIRES(kEngineLock) {
        const bool there =
            regions_.holds(active.part().remote->id) && !route_.severed;
        if (!status.ok() && there) {
          startFrames(id); // slower, but it works
        } else {
          tryStart(id); // may have to ask the owner again
        }
      });
}

void RmaInitiator::onResolved(const wire::Resolved& resolved) {
  const bool good = resolved.status == FinishStatus::kOk;
  const auto askedFor = regions_.onResolved(resolved); // perhaps gone
  const bool groupGone = resolved.status == FinishStatus::kGroupGone;
  resolving_.take(
      resolved.region,
      parts_,
      [&](uint64_t id, const ActivePart& active) REQUIRES(kEngineLock) {
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
                : unknownRegion(*active.part().remote));
      });
}

void RmaInitiator::onTransferred(uint64_t id, const Status& status) {
  auto* const active = parts_.find(id);
  if (active == nullptr) {
    return;
  }
  const auto& transfer = *active->transfer;
  if (!status.ok() && route_.severed && transfer.cancelStatus.ok() &&
      transfer.problem.ok()) {
    restart(*active);
  } else if (
      status.code() == ErrorCode::kDenied && transfer.cancelStatus.ok() &&
      transfer.problem.ok()) {
    const auto region = active->part().remote->id;
    startFrames(id); // slower, and needs no permission
    regions_.release(region); // only now: may give the region back
  } else {
    end(id, namingMemory(*active, status));
  }
}

// Resets a part, so that another connection begins the part anew.
void RmaInitiator::restart(ActivePart& active) {
  active.state = State::kResolving;
  regions_.release(active.part().remote->id);
}

void RmaInitiator::end(uint64_t id, const Status& status) {
  const auto active = parts_.take(id);
  const auto& part = active.part();
  const auto& transfer = active.transfer;
  const bool first = !status.ok() && transfer->problem.ok();
  if (first) {
    transfer->problem = status;
  }
  const bool last = --transfer->open == 0;
  const EndsAnyway ends(completions_, last ? transfer : nullptr);
  sender_.remove(id);
  if (active.state != State::kResolving) {
    regions_.release(part.remote->id);
  }
  if (last) {
    finisher_.finish(transfer);
  } else if (first) {
    stop(transfer, status);
  }
}

// Stops the parts that are still under way.
void RmaInitiator::stop(const TransferPtr& transfer, const Status& why) {
  for (const auto id : transfer->activeIds) {
    const auto* const active = parts_.find(id);
    if (active == nullptr) {
      continue;
    }
    if (active->state == State::kByGpu) {
      continue; // ends soon
    }
    if (active->state != State::kMoving) {
      end(id, why);
    } else if (route_.connection != nullptr) {
      route_.connection->rma()->stop(id);
    } // else quieted() ends the part
  }
}

void RmaInitiator::cancel(const OperationPtr& operation, const Status& why) {
  const auto transfer = std::static_pointer_cast<Transfer>(operation);
  if (!transfer->cancelStatus.ok()) {
    return;
  }
  transfer->cancelStatus = why;
  if (!finisher_.cancelWaiting(transfer)) {
    stop(transfer, why);
  }
}

std::vector<OperationPtr> RmaInitiator::pending(uint64_t groupKey) const {
  std::vector<OperationPtr> found;
  std::set<const Transfer*> seen;
  for (const auto id : parts_.ids()) {
    const auto& transfer = parts_.find(id)->transfer;
    if (transfer->groupKey == groupKey && seen.insert(transfer.get()).second) {
      found.push_back(transfer);
    }
  }
  finisher_.addWaiting(groupKey, found);
  return found;
}

// From here on: loss and replacement of the connection.

void RmaInitiator::fail(const Status& why) {
  for (const auto id : parts_.ids()) {
    const auto* const active = parts_.find(id);
    if (active == nullptr) {
      continue;
    }
    const auto transfer = active->transfer;
    if (transfer->cancelStatus.ok()) {
      cancel(
          transfer,
          Status(
              why.code(), transfer->describe() + " failed: " + why.message()));
    }
  }
  regions_.clear();
  resolving_.clear();
  registering_.clear();
}

void RmaInitiator::quieted() {
  for (const auto id : parts_.ids()) {
    auto* const active = parts_.find(id);
    if (active == nullptr || active->state != State::kMoving) {
      continue;
    }
    const auto& transfer = *active->transfer;
    if (transfer.cancelStatus.ok() && transfer.problem.ok()) {
      restart(*active);
    } else {
      end(id, transfer.problem.ok() ? transfer.cancelStatus : transfer.problem);
    }
  }
}

void RmaInitiator::resume(Connection& connection) {
  route_.connection = &connection;
  route_.severed = false;
  resolving_.clear(); // all parts are tried below
  registering_.clear();
  regions_.askAgain();
  for (const auto id : parts_.ids()) {
    tryStart(id);
  }
}

} // namespace dlslime
