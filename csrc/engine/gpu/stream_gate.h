#pragma once

#include <list>
#include <map>
#include <vector>

#include "base/clock.h"
#include "engine/progress/completions.h"
#include "engine/progress/engine_mutex.h"

namespace dlslime {

// Holds a group's operations on memory of GPUs until their streams have come to
// them, and also holds later operations that must stay behind. To the rest of
// the engine, an operation is posted when the gate lets the operation through.
// Sends to a rank with a given tag stay in order, and so do receives with a
// given tag; all further operations pass. Transfers have no order and wait only
// for their own stream. Under the engine's lock.
class StreamGate {
 public:
  explicit StreamGate(Completions& completions) : completions_(completions) {}
  ~StreamGate();
  StreamGate(const StreamGate&) = delete;
  StreamGate& operator=(const StreamGate&) = delete;

  bool empty() const REQUIRES(kEngineLock) {
    return queues_.empty() && ended_.empty();
  }
  // True if the operation's stream has not come to the operation, or if an
  // operation that must go first is held.
  bool mustHold(const Operation& operation) const REQUIRES(kEngineLock);
  void hold(const OperationPtr& operation) REQUIRES(kEngineLock);
  // Takes out the operations that may be posted now, in order. Ends operations
  // with a failed stream.
  OperationQueue takeReached() REQUIRES(kEngineLock);
  // Ends a held operation with `why`. The memory is kept, because the stream's
  // pending work may still touch the memory.
  void cancel(const OperationPtr& operation, const Status& why)
      REQUIRES(kEngineLock);
  void cancelAll(const Status& why) REQUIRES(kEngineLock);
  std::vector<OperationPtr> pending() const REQUIRES(kEngineLock);
  // Takes over the ended operations of a second gate, with streams that may
  // still touch the memory.
  void adoptEnded(StreamGate& other) REQUIRES(kEngineLock) {
    ended_.splice(ended_.end(), other.ended_);
  }

 private:
  struct Key {
    Operation::Kind kind;
    uint32_t tag;
    int peer; // only of sends: a receive may be from any source
    const void*
        stream; // only of transfers: each waits for its own stream alone
    auto operator<=>(const Key&) const = default;
  };
  using Queue = std::list<OperationPtr>;
  static Key keyOf(const Operation& operation);
  void takeFrom(Queue& queue, bool ask, OperationQueue& reached)
      REQUIRES(kEngineLock);
  void releaseEnded(bool ask) REQUIRES(kEngineLock);
  bool healthDue() REQUIRES(kEngineLock);

  Completions& completions_;
  std::map<Key, Queue> queues_; // no queue is empty
  Queue ended_; // ended early: streams may still touch the memory
  TimePoint lastAsked_{};
};

} // namespace dlslime
