#pragma once

#include <array>
#include <cstdint>
#include <utility>

#include "transports/rdma/rail/queue_pair.h"

namespace dlslime::rdma {

// Kind of a completed request.
enum class RequestKind : uint8_t {
  kMessage = 1,
  kBulk = 2,
  kPush = 3,
  kFlush = 4
};

struct RequestId {
  RequestKind kind = RequestKind::kMessage;
  // Slots of the send queue freed by the completion.
  uint32_t slots = 0;
  uint32_t number = 0; // number of the push, for kPush
};

// Counts the free slots of a queue pair's send queue. Asks for only as many
// completions as keep slots flowing: requests complete in order, so a
// completion stands for all earlier requests, too.
class SendQueue {
 public:
  SendQueue(QueuePair& pair, uint32_t depth) : pair_(pair), free_(depth) {}

  // Returns whether post() may be called.
  bool room() const {
    return free_ > 0;
  }
  // Posts a request, or keeps it while the queue is held. Returns false, with
  // the errno in `error`, if the queue pair is broken.
  bool
  post(ibv_send_wr& request, RequestKind kind, uint32_t number, int& error);
  // Chains the following requests, up to kChain at a time, so that a single
  // doorbell write tells the NIC of the whole chain.
  void hold() {
    ++held_;
  }
  // Ends a hold(). The last letGo() posts the kept requests; returns as post()
  // does.
  bool letGo(int& error) {
    return --held_ > 0 || flush(error);
  }
  // Requests given to the device so far, and their bytes.
  struct Traffic {
    uint64_t requests = 0, sentBytes = 0, readBytes = 0;
  };
  const Traffic& traffic() const {
    return traffic_;
  }
  // Requests refused by the device, which sends no completions for them.
  struct Refused {
    // Number of refused bulk requests, always the latest of the queue.
    uint32_t bulk = 0;
    // Number of the first refused push, or 0. All later pushes are refused,
    // too.
    uint32_t push = 0;
  };
  Refused takeRefused() {
    return std::exchange(refused_, {});
  }
  // Frees the slots of a completed request and of the unsignalled requests
  // before, whatever the status.
  RequestId completed(uint64_t workRequestId);
  // Returns whether every posted request has completed.
  bool idle() const {
    return unsignalled_ == 0 && pending_ == 0;
  }

 private:
  static constexpr size_t kChain = 32;
  struct Kept {
    ibv_send_wr request;
    ibv_sge segment;
  };
  void count(const ibv_send_wr& request);
  bool flush(int& error);
  bool give(ibv_send_wr* list, int& error);

  QueuePair& pair_;
  std::array<Kept, kChain> chain_{};
  size_t chained_ = 0;
  int held_ = 0;
  uint32_t free_;
  uint32_t unsignalled_ = 0; // requests since the last signalled request
  uint32_t pending_ = 0; // slots freed by the outstanding completions
  Refused refused_;
  Traffic traffic_;
};

} // namespace dlslime::rdma
