#pragma once

#include <memory>
#include <vector>

#include "engine/progress/engine_mutex.h"
#include "engine/two_sided/receiving_group.h"
#include "engine/wire/two_sided_messages.h"
#include "interface/operation.h"

namespace dlslime {

// Returns the status of a send, as told by the receiver.
Status finishError(const Operation& send, const wire::Finish& finish);

// Eager sends that have ended a moment ago, since the receiver may still refuse
// such a message. Under the engine's lock.
class RecentSends {
 public:
  // Remembers a send for the next kKept messages.
  void note(uint64_t number, const OperationPtr& operation)
      REQUIRES(kEngineLock) {
    sends_[number % kKept] = {number, operation};
  }
  // Fails a send, because the receiver has refused the message. Null: the group
  // is gone.
  void onTruncated(
      const ReceivingGroup* group,
      const wire::Truncated& truncated) REQUIRES(kEngineLock);

 private:
  static constexpr size_t kKept = 256;
  struct Send {
    uint64_t number = 0; // of the message
    std::weak_ptr<Operation> operation;
  };
  std::vector<Send> sends_{kKept}; // by number modulo kKept
};

} // namespace dlslime
