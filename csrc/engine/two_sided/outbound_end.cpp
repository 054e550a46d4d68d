#include <algorithm>

#include "engine/two_sided/outbound.h"

// Part of Outbound: sends that end before their time.

namespace dlslime {

void Outbound::cancel(const OperationPtr& operation, const Status& why) {
  if (operation->stage == Operation::Stage::kPushing) {
    if (operation->cancelStatus.ok()) {
      operation->cancelStatus = why; // for a replacement of the connection
    }
    return; // the push ends soon, or with the connection
  }
  if (operation->stage == Operation::Stage::kAnnounced) {
    const auto* const exposure = exposures_.find(operation->transferId);
    if (exposure == nullptr || !operation->cancelStatus.ok()) {
      return;
    }
    operation->cancelStatus = why;
    const auto& rts = exposure->rts;
    sendControl(wire::Revoke{rts.group, rts.source, rts.tag, rts.id});
    return;
  }
  if (operation->stage == Operation::Stage::kQueued) {
    cancelQueued(operation, why);
  }
}

// Keeps the place in the outbox as long as messages wait before and behind the
// place.
void Outbound::cancelQueued(const OperationPtr& operation, const Status& why) {
  const auto place = std::lower_bound(
      outbox_.begin(),
      outbox_.end(),
      operation->transferId,
      [](const Queued& entry, uint64_t order) { return entry.order < order; });
  if (place == outbox_.end() || place->eager != operation) {
    return;
  }
  place->eager = nullptr;
  place->header = {};
  place->cancelled = true;
  while (!outbox_.empty() && outbox_.front().cancelled) {
    outbox_.pop_front();
  }
  while (!outbox_.empty() && outbox_.back().cancelled) {
    outbox_.pop_back();
  }
  completions_.finish(operation, why);
}

Status Outbound::unreadable(const Operation& operation, Fault fault) {
  return {
      ErrorCode::kTransportFailed,
      operation.describe() + " failed: this process's memory " +
          faultText(fault, false)};
}

// Ends a send whose memory can't be read, and so the use of the memory. The
// receiver is told when a receive matches the message.
void Outbound::announceFailed(Queued& entry, Fault fault) {
  auto rts = rtsOf(entry);
  rts.id = exposures_.insert({});
  rts.memory.slot = RemoteBuffer::kUnreachable;
  const auto operation = std::move(entry.eager);
  auto& exposure = *exposures_.find(rts.id);
  exposure.operation = operation;
  exposure.rts = rts;
  exposure.failed = true;
  entry.header = wire::encode(rts);
  completions_.finish(operation, unreadable(*operation, fault));
}

void Outbound::releaseFailed() {
  for (const auto& operation : failedSends_) {
    completions_.finish(operation, {});
  }
  failedSends_.clear();
}

void Outbound::releasePushed() {
  for (const auto id : pushes_.ids()) {
    completions_.finish(pushes_.find(id)->operation, {});
    pushes_.take(id);
  }
}

// May be called again, as is necessary after std::bad_alloc.
void Outbound::fail(const Status& why) {
  failed_ = true;
  failure_ = why;
  waitingControls_ = 0;
  unconfirmed_.clear();
  streams_.clear();
  const auto tell = [&](const OperationPtr& operation) {
    Status status =
        !operation->cancelStatus.ok() ? operation->cancelStatus : inWords([&] {
          return Status(
              why.code(), operation->describe() + " failed: " + why.message());
        });
    completions_.finishEarly(operation, std::move(status));
  };
  const auto end = [&](const OperationPtr& operation) {
    tell(operation);
    failedSends_.push_back(operation);
  };
  for (; !outbox_.empty(); outbox_.pop_front()) {
    if (outbox_.front().eager) {
      end(outbox_.front().eager);
    }
  }
  for (const auto id : exposures_.ids()) {
    end(exposures_.find(id)->operation);
    forget(id);
  }
  for (const auto id : pushes_.ids()) {
    const auto& push = *pushes_.find(id);
    if (connection_ == nullptr || push.over) {
      end(push.operation);
      pushes_.take(id);
    } else {
      tell(push.operation); // the NIC may read on, until onPushed()
    }
  }
  targets_.clear();
}

} // namespace dlslime
