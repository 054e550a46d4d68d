#pragma once

#include <list>
#include <map>
#include <vector>

#include "base/clock.h"
#include "engine/progress/completions.h"

namespace dlslime {

// The operations of one group on memory of GPUs whose stream has not come to
// them, and those behind them: to all others it is as if they were posted when
// it has. Sends to one rank with one tag stay in order, and so do receives with
// one tag; others pass. Transfers have no order, and wait for their own stream
// alone. Under the engine's lock.
class StreamGate {
 public:
  explicit StreamGate(Completions& completions) : completions_(completions) {}
  ~StreamGate();
  StreamGate(const StreamGate&) = delete;
  StreamGate& operator=(const StreamGate&) = delete;

  bool empty() const {
    return queues_.empty() && ended_.empty();
  }
  // Its stream has not come there, or one that goes before it is here.
  bool mustHold(const Operation& operation) const;
  void hold(const OperationPtr& operation);
  // Those that may be posted now, in order. Ends those whose stream has failed.
  OperationQueue takeReached();
  // It ends with `why`. What its stream has yet to do with its memory goes on,
  // so that this is kept.
  void cancel(const OperationPtr& operation, const Status& why);
  void cancelAll(const Status& why);
  std::vector<OperationPtr> pending() const;
  // Takes over what has ended and whose streams may still touch its memory.
  void adoptEnded(StreamGate& other) {
    ended_.splice(ended_.end(), other.ended_);
  }

 private:
  struct Key {
    Operation::Kind kind;
    uint32_t tag;
    int peer; // of sends: a receive may be from any
    const void* stream; // of transfers: others need not wait for it
    auto operator<=>(const Key&) const = default;
  };
  using Queue = std::list<OperationPtr>;
  static Key keyOf(const Operation& operation);
  void takeFrom(Queue& queue, bool ask, OperationQueue& reached);
  void releaseEnded(bool ask);
  bool healthDue();

  Completions& completions_;
  std::map<Key, Queue> queues_; // none is empty
  Queue ended_; // whose streams may still touch their memory
  TimePoint lastAsked_{};
};

} // namespace dlslime
