#include <algorithm>

#include "engine/two_sided/outbound.h"

// Sends that end before their time.

namespace dlslime {

void Outbound::cancel(const OperationPtr& operation, const Status& why) {
  if (operation->stage == Operation::Stage::kPushing) {
    if (operation->cancelStatus.ok()) {
      operation->cancelStatus = why; // for when the connection is replaced
    }
    return; // ends soon, or with the connection
  }
  if (operation->stage == Operation::Stage::kAnnounced) {
    const auto* const exposure = exposures_.find(operation->transferId);
    if (exposure == nullptr || !operation->cancelStatus.ok()) {
      return;
    }
    operation->cancelStatus = why;
    MessageHeader revoke = exposure->announce;
    revoke.type = MessageType::kRevoke;
    sendControl(revoke);
    return;
  }
  if (operation->stage == Operation::Stage::kQueued) {
    cancelQueued(operation, why);
  }
}

// Its place is kept as long as something waits before it and behind it.
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
      operation.describe() + " failed: its memory " + faultText(fault, false)};
}

// A message that can't be read is over at its sender, and so is the use of its
// memory; the receiver is told when a receive of its meets it.
void Outbound::announceFailed(Queued& entry, Fault fault) {
  auto& header = entry.header;
  header.type = MessageType::kRts;
  header.id = exposures_.insert({});
  const auto operation = std::move(entry.eager);
  setRemote(header, {0, {}, RemoteBuffer::kUnreachable});
  auto& exposure = *exposures_.find(header.id);
  exposure.operation = operation;
  exposure.announce = header;
  exposure.failed = true;
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

// May be called again, as what it has no memory for must be.
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
      tell(push.operation); // the NIC may still read it: until onPushed()
    }
  }
  targets_.clear();
}

} // namespace dlslime
