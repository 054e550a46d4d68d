#pragma once

#include <algorithm>
#include <deque>
#include <map>

#include "engine/one_sided/transfer.h"
#include "engine/progress/engine_mutex.h"

namespace dlslime {

// Transfers with notes, in the order in which each group has begun the
// transfers: a note is sent once the bytes of the transfer have arrived and all
// earlier notes of the group have gone. Under the engine's lock.
class NoteOrder {
 public:
  void begin(const TransferPtr& transfer) REQUIRES(kEngineLock) {
    waiting_[transfer->groupKey].push_back(transfer);
  }
  // Forgets a transfer that ends without sending the note.
  void remove(const Transfer& transfer) REQUIRES(kEngineLock) {
    const auto group = waiting_.find(transfer.groupKey);
    if (group == waiting_.end()) {
      return;
    }
    std::erase_if(group->second, [&](const TransferPtr& entry) {
      return entry.get() == &transfer;
    });
    if (group->second.empty()) {
      waiting_.erase(group);
    }
  }
  // Takes out the group's first transfer if the note is to be sent now; else
  // returns null.
  TransferPtr next(uint64_t groupKey) REQUIRES(kEngineLock) {
    const auto group = waiting_.find(groupKey);
    if (group == waiting_.end() || !group->second.front()->bytesThere) {
      return nullptr;
    }
    auto first = std::move(group->second.front());
    group->second.pop_front();
    if (group->second.empty()) {
      waiting_.erase(group);
    }
    return first;
  }
  // Visits the group's transfers that wait only for earlier notes.
  template <typename Visit>
  void visitWaiting(uint64_t groupKey, const Visit& visit) const
      REQUIRES(kEngineLock) {
    const auto group = waiting_.find(groupKey);
    if (group == waiting_.end()) {
      return;
    }
    for (const auto& transfer : group->second) {
      if (transfer->bytesThere) {
        visit(transfer);
      }
    }
  }

 private:
  std::map<uint64_t, std::deque<TransferPtr>> waiting_; // by group; none empty
};

} // namespace dlslime
