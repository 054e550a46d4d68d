#include "base/memory/fault.h"
#include "engine/two_sided/outbound.h"

namespace dlslime {

Status finishError(const Operation& send, const MessageHeader& finish) {
  const std::string what = send.describe() + " failed: ";
  const std::string rank = send.nameOf(send.peer());
  switch (finish.status) {
    case FinishStatus::kOk:
      return {};
    case FinishStatus::kRevoked:
      return {
          ErrorCode::kTransportFailed,
          what + rank + " says that it was taken back, which it was not"};
    case FinishStatus::kTruncated:
      return {
          ErrorCode::kTruncated,
          what + "the message is longer than the receive that it met at " +
              rank + ": " + std::to_string(send.size()) + " bytes sent, " +
              std::to_string(finish.offset) + " bytes expected there"};
    case FinishStatus::kCancelled:
      return {
          ErrorCode::kPeerFailed,
          what + rank + " gave up its receive (time-out or abort)"};
    case FinishStatus::kGroupGone:
      return {ErrorCode::kPeerFailed, what + rank + " has left the group"};
    case FinishStatus::kFailed:
      return {
          ErrorCode::kTransportFailed,
          what + rank + " could not fetch it; its receive says why"};
    case FinishStatus::kUnreadable:
      return {
          ErrorCode::kTransportFailed,
          what + "its memory " + faultText(Fault::kGone, false)};
    case FinishStatus::kUnwritable:
      return {
          ErrorCode::kTransportFailed,
          what + rank + " can't write its own memory; its receive says why"};
    case FinishStatus::kUnknownMemory: // of one-sided transfers
    case FinishStatus::kOutOfRange:
    case FinishStatus::kForReading:
      break;
  }
  return {ErrorCode::kTransportFailed, what + "unknown status"};
}

} // namespace dlslime
