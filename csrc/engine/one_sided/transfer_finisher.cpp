#include "engine/one_sided/transfer_finisher.h"

#include <string>

#include "engine/progress/ends_anyway.h"

namespace dlslime {

void TransferFinisher::finish(const TransferPtr& transfer) {
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

void TransferFinisher::finishBadly(const TransferPtr& transfer) {
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
void TransferFinisher::sendNotes(uint64_t groupKey) {
  while (const auto transfer = notes_.next(groupKey)) {
    const EndsAnyway ends(completions_, transfer);
    transfer->note->follower = transfer;
    sendNote_(transfer);
  }
}

bool TransferFinisher::cancelWaiting(const TransferPtr& transfer) {
  if (!transfer->bytesThere || transfer->note->follower != nullptr) {
    return false;
  }
  finishBadly(transfer);
  sendNotes(transfer->groupKey);
  return true;
}

void TransferFinisher::addWaiting(
    uint64_t groupKey,
    std::vector<OperationPtr>& found) const {
  notes_.visitWaiting(
      groupKey, [&](const TransferPtr& waiting) { found.push_back(waiting); });
}

} // namespace dlslime
