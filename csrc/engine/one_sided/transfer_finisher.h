#pragma once

#include <functional>
#include <vector>

#include "engine/one_sided/note_order.h"
#include "engine/progress/completions.h"
#include "engine/progress/engine_mutex.h"

namespace dlslime {

// Ends transfers whose bytes have arrived or failed, and sends the notes of
// those that have one, in order. Under the engine's lock.
class TransferFinisher {
 public:
  // Sends the note of a transfer with all bytes arrived; note and transfer end
  // together.
  using SendNote = std::function<void(const TransferPtr&)>;
  TransferFinisher(Completions& completions, SendNote sendNote)
      : completions_(completions), sendNote_(std::move(sendNote)) {}

  // Gives the transfer its place among the transfers with notes.
  void begin(const TransferPtr& transfer) REQUIRES(kEngineLock) {
    if (transfer->note) {
      notes_.begin(transfer);
    }
  }
  void forget(const Transfer& transfer) REQUIRES(kEngineLock) {
    notes_.remove(transfer);
  }
  // Ends a transfer without open parts; one with a note ends with the note.
  void finish(const TransferPtr& transfer) REQUIRES(kEngineLock);
  // Ends a cancelled transfer that waits only for earlier notes. False: it does
  // not.
  bool cancelWaiting(const TransferPtr& transfer) REQUIRES(kEngineLock);
  // Adds the group's transfers that wait only for earlier notes.
  void addWaiting(uint64_t groupKey, std::vector<OperationPtr>& found) const
      REQUIRES(kEngineLock);

 private:
  void finishBadly(const TransferPtr& transfer) REQUIRES(kEngineLock);
  void sendNotes(uint64_t groupKey) REQUIRES(kEngineLock);

  Completions& completions_;
  const SendNote sendNote_;
  NoteOrder notes_;
};

} // namespace dlslime
