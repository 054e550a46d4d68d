#pragma once

#include <cstdint>
#include <deque>

#include "engine/progress/engine_mutex.h"
#include "engine/two_sided/receiving_group.h"
#include "interface/message.h"
#include "interface/operation.h"

namespace dlslime {

// Messages that wait until the route has room, in their order. Under the
// engine's lock.
class Outbox {
 public:
  struct Message {
    MessageHeader header;
    // The view is the payload; null for a control message or an Rts.
    OperationPtr eager;
    Counters* counters = nullptr; // of the eager operation's group
    uint64_t order = 0; // ascending
    bool cancelled = false; // only the place is left
    bool control = false; // posted without an operation
  };

  bool empty() const REQUIRES(kEngineLock) {
    return messages_.empty();
  }
  // Number of control messages.
  size_t controls() const REQUIRES(kEngineLock) {
    return controls_;
  }
  void push(Message message) REQUIRES(kEngineLock);
  Message& front() REQUIRES(kEngineLock) {
    return messages_.front();
  }
  void pop() REQUIRES(kEngineLock);
  // Takes the message of a queued operation out. False: it is not here.
  bool cancel(const OperationPtr& operation) REQUIRES(kEngineLock);
  // Visits all messages in their order.
  std::deque<Message>& all() REQUIRES(kEngineLock) {
    return messages_;
  }
  const std::deque<Message>& all() const REQUIRES(kEngineLock) {
    return messages_;
  }

 private:
  std::deque<Message> messages_;
  size_t controls_ = 0;
  uint64_t nextOrder_ = 1;
};

} // namespace dlslime
