#include "engine/progress/ends_anyway.h"
#include "engine/two_sided/inbound.h"

// How receives end whose bytes are being fetched.

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

// How the caller of a receive is told.
Status
Inbound::whyFailed(const Operation& receive, int source, const Status& status) {
  if (status.ok()) {
    return status; // of most messages: nothing is made for it
  }
  const auto what = receive.describe() + " failed: ";
  switch (status.code()) {
    case ErrorCode::kOwnFault:
      return {
          ErrorCode::kTransportFailed, what + "its memory " + status.message()};
    case ErrorCode::kPeerFault:
      return {
          ErrorCode::kTransportFailed,
          what + "the memory of " + receive.nameOf(source) + " " +
              status.message()};
    default:
      return {status.code(), what + status.message()};
  }
}

void Inbound::endPull(uint64_t pullId, Status status) {
  Pull pull = pulls_.take(pullId);
  auto& receive = pull.receive;
  const EndsAnyway ends(completions_, receive);
  if (status.ok()) {
    receive->setResult(pull.source, pull.length);
    sendFinish(pull.senderId, FinishStatus::kOk);
  } else if (!receive->cancelStatus.ok()) {
    status = receive->cancelStatus;
    sendFinish(pull.senderId, FinishStatus::kCancelled);
  } else {
    sendFinish(pull.senderId, finishOf(status));
    status = whyFailed(*receive, pull.source, status);
  }
  completions_.finish(std::move(receive), std::move(status));
}

void Inbound::cancel(const OperationPtr& receive, const Status& why) {
  Pull* const pull = pulls_.find(receive->transferId);
  if (pull == nullptr || pull->receive != receive ||
      !receive->cancelStatus.ok()) {
    return;
  }
  receive->cancelStatus = why;
  if (pull->framed || pull->waiting) {
    endPull(receive->transferId, why);
  } else if (connection_ != nullptr && !pull->byGpu) {
    connection_->abandon(receive->transferId);
  }
}

void Inbound::fail(const Status& why) {
  if (connection_ != nullptr) {
    connection_->endPulls();
  }
  ready_.fail();
  for (const auto id : pulls_.ids()) {
    Pull* const pull = pulls_.find(id);
    if (pull->receive->cancelStatus.ok()) {
      pull->receive->cancelStatus = Status(
          why.code(), pull->receive->describe() + " failed: " + why.message());
    }
    if (pull->framed || pull->waiting) {
      endPull(id, why);
    }
  }
}

std::vector<OperationPtr> Inbound::pending(uint64_t groupKey) const {
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
