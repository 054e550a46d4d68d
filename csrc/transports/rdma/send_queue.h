#pragma once

#include <array>
#include <cstdint>
#include <utility>

#include "transports/rdma/queue_pair.h"

namespace dlslime::rdma {

// What a completed request was.
enum class RequestKind : uint8_t {
  kMessage = 1,
  kBulk = 2,
  kPush = 3,
  kFlush = 4
};

struct RequestId {
  RequestKind kind = RequestKind::kMessage;
  uint32_t slots = 0; // of the send queue that are free with it
  uint32_t number = 0; // kPush: whose
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
  // Posts one request, or keeps it while held. False, with the errno: the
  // queue pair is broken.
  bool
  post(ibv_send_wr& request, RequestKind kind, uint32_t number, int& error);
  // Requests are chained from now on, up to a few dozen, so that the NIC is
  // told of all by one write to its doorbell.
  void hold() {
    ++held_;
  }
  // Once as often: posts what was kept. False, with the errno, as above.
  bool letGo(int& error) {
    return --held_ > 0 || flush(error);
  }
  // What the device has not taken, and tells nothing of.
  struct Refused {
    uint32_t bulk = 0; // so many, the last ones
    uint32_t push = 0; // the first one's number, and all after it; 0: none
  };
  Refused takeRefused() {
    return std::exchange(refused_, {});
  }
  // A completion of this queue, whatever its status.
  RequestId completed(uint64_t workRequestId);
  // Everything that was posted has completed.
  bool idle() const {
    return unsignalled_ == 0 && pending_ == 0;
  }

 private:
  static constexpr size_t kChain = 32;
  struct Kept {
    ibv_send_wr request;
    ibv_sge segment;
  };
  bool flush(int& error);
  bool give(ibv_send_wr* list, int& error);

  QueuePair& pair_;
  std::array<Kept, kChain> chain_{};
  size_t chained_ = 0;
  int held_ = 0;
  uint32_t free_;
  uint32_t unsignalled_ = 0; // since the last signalled one
  uint32_t pending_ = 0; // slots that a completion to come frees
  Refused refused_;
};

} // namespace dlslime::rdma
