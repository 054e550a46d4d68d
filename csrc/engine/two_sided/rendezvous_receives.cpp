#include "engine/two_sided/rendezvous_receives.h"

#include <algorithm>

#include "engine/progress/ends_anyway.h"
#include "engine/two_sided/receiving_group.h"

namespace dlslime {

namespace {

FinishStatus finishOf(const Status& failure) {
  switch (failure.code()) {
    case ErrorCode::kOwnFault:
      return FinishStatus::kUnwritable;
    case ErrorCode::kPeerFault:
      return FinishStatus::kUnreadable;
    default:
      return FinishStatus::kFailed;
  }
}

} // namespace

void RendezvousReceives::start(
    ReceivingGroup& group,
    const OperationPtr& receive,
    const Arrival& arrival) {
  Pull pull{receive, arrival.id, arrival.source, arrival.length};
  pull.waiting = severed_ || arrival.generation != generation_;
  const auto pullId = pulls_.insert(std::move(pull));
  receive->stage = Operation::Stage::kPulling;
  receive->transferId = pullId;
  receive->holder = this;
  if (arrival.length == 0 || !pulls_.find(pullId)->waiting) {
    fetch(pullId, arrival.remote);
    countOnGpu(group, pullId);
  }
}

void RendezvousReceives::fetch(uint64_t pullId, RemoteBuffer source) {
  auto& pull = *pulls_.find(pullId);
  pull.remote = source;
  auto destination = pull.receive->view();
  destination.data += pull.arrived; // by an earlier connection
  destination.size = static_cast<size_t>(pull.length - pull.arrived);
  source.address += pull.arrived;
  pull.waiting = false;
  if (destination.size == 0) {
    end(pullId, {});
    return;
  }
  if (fetchByGpu(pullId, source, destination)) {
    return;
  }
  pull.framed = source.slot >= RemoteBuffer::kOnGpu ||
      (destination.onDevice() && !connection_->takesGpus()) ||
      connection_->pulling() == nullptr ||
      !connection_->pulling()->pull(pullId, pull.senderId, source, destination);
  if (pull.framed) {
    out_.sendControl(wire::StreamRequest{pull.senderId, pullId, pull.arrived});
  }
}

// Copies from the peer's GPU to ours, past all processors. False: not possible.
bool RendezvousReceives::fetchByGpu(
    uint64_t pullId,
    RemoteBuffer source,
    MemoryView to) {
  if (!to.onDevice()) {
    return false;
  }
  auto& pull = *pulls_.find(pullId);
  const Piece whole{to.data, source.address, to.size};
  pull.byGpu = gpus_.move(
      *to.accelerator,
      to.device,
      source,
      false,
      {&whole, 1},
      [this, pullId](const Status& status)
          REQUIRES(kEngineLock) { end(pullId, status); });
  return pull.byGpu;
}

// Counts a message that gets into a GPU's memory without a copy of ours.
void RendezvousReceives::countOnGpu(ReceivingGroup& group, uint64_t pullId) {
  const auto* const pull = pulls_.find(pullId);
  if (pull != nullptr && pull->receive->ofDevice() && !pull->framed) {
    auto& counters = group.counters(pull->source);
    ++(pull->byGpu ? counters.cudaIpcMessages : counters.gpuDirectMessages);
  }
}

void RendezvousReceives::onData(const wire::Data& data, ByteSpan payload) {
  Pull* const pull = pulls_.find(data.pull);
  // An unknown pull was given up. Without `framed`, copies may be running into
  // the memory, and a correct sender streams only when asked.
  if (pull == nullptr || !pull->framed) {
    return;
  }
  if (data.status != FinishStatus::kOk) {
    end(data.pull,
        Status(
            ErrorCode::kTransportFailed,
            pull->receive->nameOf(pull->source) +
                " could not read what it sent; its send says why"));
    return;
  }
  if (data.offset != pull->arrived ||
      payload.size() > pull->length - pull->arrived) {
    end(data.pull,
        Status(
            ErrorCode::kTransportFailed,
            "a piece of " + std::to_string(payload.size()) +
                " bytes at offset " + std::to_string(data.offset) +
                " does not continue a message of " +
                std::to_string(pull->length) + " bytes at " +
                std::to_string(pull->arrived)));
    return;
  }
  if (const auto status = copies_.copyIn(pull->receive, pull->arrived, payload);
      !status.ok()) {
    end(data.pull, status);
    return;
  }
  pull->arrived += payload.size();
  if (pull->arrived == pull->length) {
    end(data.pull, {});
  }
}

void RendezvousReceives::onPulled(uint64_t pullId, const Status& status) {
  auto* const pull = pulls_.find(pullId);
  if (pull == nullptr) {
    return;
  }
  const bool wanted = !status.ok() && pull->receive->cancelStatus.ok();
  if (severed_ && wanted) {
    pull->waiting = true;
  } else if (status.code() == ErrorCode::kDenied && wanted) {
    fetch(pullId, pull->remote);
  } else {
    end(pullId, status);
  }
}

void RendezvousReceives::onPartlyPulled(uint64_t pullId, size_t arrived) {
  if (auto* const pull = pulls_.find(pullId)) {
    pull->arrived += std::min<uint64_t>(arrived, pull->length - pull->arrived);
  }
}

void RendezvousReceives::onMoved(const wire::Moved& moved) {
  for (const auto id : pulls_.ids()) {
    const auto& pull = *pulls_.find(id);
    if (pull.waiting && pull.senderId == moved.id) {
      fetch(id, moved.memory);
      return;
    }
  } // else the receive has ended, and the sender will be told
}

void RendezvousReceives::quieted() {
  for (const auto id : pulls_.ids()) {
    auto& pull = *pulls_.find(id);
    if (pull.framed || pull.byGpu) {
      continue; // needs no Moved: comes in messages, or by a GPU
    }
    if (pull.receive->cancelStatus.ok()) {
      pull.waiting = true;
    } else {
      end(id, pull.receive->cancelStatus);
    }
  }
}

void RendezvousReceives::end(uint64_t pullId, Status status) {
  Pull pull = pulls_.take(pullId);
  auto& receive = pull.receive;
  const EndsAnyway ends(completions_, receive);
  if (status.ok()) {
    receive->setResult(pull.source, pull.length);
    credit_.finish(pull.senderId, FinishStatus::kOk);
  } else if (!receive->cancelStatus.ok()) {
    status = receive->cancelStatus;
    credit_.finish(pull.senderId, FinishStatus::kCancelled);
  } else {
    credit_.finish(pull.senderId, finishOf(status));
    status = ReceiveCopies::whyFailed(*receive, pull.source, status);
  }
  completions_.finish(std::move(receive), std::move(status));
}

void RendezvousReceives::cancel(
    const OperationPtr& receive,
    const Status& why) {
  Pull* const pull = pulls_.find(receive->transferId);
  if (pull == nullptr || pull->receive != receive ||
      !receive->cancelStatus.ok()) {
    return;
  }
  receive->cancelStatus = why;
  if (pull->framed || pull->waiting) {
    end(receive->transferId, why);
  } else if (connection_ != nullptr && !pull->byGpu) {
    connection_->pulling()->abandon(receive->transferId);
  }
}

void RendezvousReceives::fail(const Status& why) {
  if (connection_ != nullptr) {
    connection_->endPulls();
  }
  for (const auto id : pulls_.ids()) {
    Pull* const pull = pulls_.find(id);
    if (pull->receive->cancelStatus.ok()) {
      pull->receive->cancelStatus = Status(
          why.code(), pull->receive->describe() + " failed: " + why.message());
    }
    if (pull->framed || pull->waiting) {
      end(id, why);
    }
  }
}

std::vector<OperationPtr> RendezvousReceives::pending(uint64_t groupKey) const {
  std::vector<OperationPtr> found;
  auto& pulls = const_cast<Slab<Pull>&>(pulls_);
  for (const auto id : pulls.ids()) {
    const auto& receive = pulls.find(id)->receive;
    if (receive->groupKey == groupKey) {
      found.push_back(receive);
    }
  }
  return found;
}

} // namespace dlslime
