#pragma once

#include <cstdint>

#include "rdma/queue_pair.h"

namespace dlslime::rdma {

// What a completed request was.
enum class RequestKind : uint8_t {
  kMessage = 1,
  kRead = 2,
  kPush = 3,
  kFlush = 4
};

struct RequestId {
  RequestKind kind = RequestKind::kMessage;
  uint32_t slots = 0; // of the send queue that are free with it
  uint32_t number = 0; // kRead, kPush: whose
};

// Counts the slots of a queue pair's send queue, and asks for as few
// completions as keep them flowing: requests complete in order, so one tells
// of all before it.
class SendQueue {
 public:
  SendQueue(QueuePair& pair, uint32_t depth) : pair_(pair), free_(depth) {}

  // Without room post() must not be called.
  bool room() const {
    return free_ > 0;
  }
  // Posts one request. False, with the errno: the queue pair is broken.
  bool
  post(ibv_send_wr& request, RequestKind kind, uint32_t number, int& error);
  // A completion of this queue, whatever its status.
  RequestId completed(uint64_t workRequestId);
  // Everything that was posted has completed.
  bool idle() const {
    return unsignalled_ == 0 && pending_ == 0;
  }

 private:
  QueuePair& pair_;
  uint32_t free_;
  uint32_t unsignalled_ = 0; // since the last signalled one
  uint32_t pending_ = 0; // slots that a completion to come frees
};

} // namespace dlslime::rdma
