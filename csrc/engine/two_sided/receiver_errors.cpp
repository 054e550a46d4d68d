#include "engine/two_sided/receiver_errors.h"

#include <atomic>

#include "base/log.h"
#include "base/memory/fault.h"

namespace dlslime {

namespace {
// Logs that an eager send, already ended, was longer than the receive.
void logTruncated(const ReceivingGroup& group, const wire::Truncated& told) {
  // Limit for the whole process: a lying peer could fill a disk, and may
  // connect again and again.
  constexpr uint64_t kMostLines = 1000;
  static std::atomic<uint64_t> lines{0};
  const auto line = ++lines;
  if (line > kMostLines) {
    return;
  }
  logError(
      "a send of " + std::to_string(told.length) + " bytes to " +
      group.nameOf(static_cast<int>(told.source)) + " " + tagName(told.tag) +
      " met a receive of only " + std::to_string(told.capacity) +
      " bytes; that receive has failed" +
      (line == kMostLines ? " (no more of these are logged)" : ""));
}

} // namespace

// Logs the error, too, because the caller may not look at the operation any
// more: an eager send has ended well once the route has copied the message.
void RecentSends::onTruncated(
    const ReceivingGroup* group,
    const wire::Truncated& truncated) {
  if (group == nullptr) {
    return;
  }
  logTruncated(*group, truncated);
  const auto& send = sends_[truncated.messageSequence % kKept];
  const auto operation = send.operation.lock();
  if (send.number == truncated.messageSequence && operation &&
      operation->status().ok()) {
    operation->failLate(finishError(
        *operation, {FinishStatus::kTruncated, 0, truncated.capacity}));
  }
}

Status finishError(const Operation& send, const wire::Finish& finish) {
  const std::string what = send.describe() + " failed: ";
  const std::string rank = send.nameOf(send.peer());
  switch (finish.status) {
    case FinishStatus::kOk:
      return {};
    case FinishStatus::kRevoked:
      return {
          ErrorCode::kTransportFailed,
          what + rank +
              " says that the send was taken back, but the send was not"};
    case FinishStatus::kTruncated:
      return {
          ErrorCode::kTruncated,
          what + "the message is longer than the receive that it met at " +
              rank + ": " + std::to_string(send.size()) + " bytes sent, " +
              std::to_string(finish.capacity) + " bytes expected there"};
    case FinishStatus::kCancelled:
      return {
          ErrorCode::kPeerFailed,
          what + rank + " gave up its receive (time-out or abort)"};
    case FinishStatus::kGroupGone:
      return {ErrorCode::kPeerFailed, what + rank + " has left the group"};
    case FinishStatus::kFailed:
      return {
          ErrorCode::kTransportFailed,
          what + rank + " could not fetch the message; its receive says why"};
    case FinishStatus::kUnreadable:
      return {
          ErrorCode::kTransportFailed,
          what + "this process's memory " + faultText(Fault::kGone, false)};
    case FinishStatus::kUnwritable:
      return {
          ErrorCode::kTransportFailed,
          what + rank + " can't write its own memory; its receive says why"};
    case FinishStatus::kUnknownMemory: // only one-sided transfers end so
    case FinishStatus::kOutOfRange:
    case FinishStatus::kForReading:
      break;
  }
  return {
      ErrorCode::kTransportFailed,
      what + "the peer answered with the unknown status " +
          std::to_string(static_cast<int>(finish.status))};
}

} // namespace dlslime
