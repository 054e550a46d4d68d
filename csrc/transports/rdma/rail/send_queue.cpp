#include "transports/rdma/rail/send_queue.h"

#include <utility>

namespace dlslime::rdma {

namespace {
// Number of requests per completion: large enough to spread the cost of
// completions, and small enough to keep a queue of hundreds from filling up.
constexpr uint32_t kSignalEvery = 32;

uint64_t pack(const RequestId& id) {
  return static_cast<uint64_t>(id.kind) << 56 |
      static_cast<uint64_t>(id.slots & 0xffffff) << 32 | id.number;
}

RequestId unpack(uint64_t value) {
  return {
      static_cast<RequestKind>(value >> 56),
      static_cast<uint32_t>(value >> 32) & 0xffffff,
      static_cast<uint32_t>(value)};
}
} // namespace

bool SendQueue::post(
    ibv_send_wr& request,
    RequestKind kind,
    uint32_t number,
    int& error) {
  ++unsignalled_;
  --free_;
  count(request);
  RequestId id{kind, 0, number};
  if (kind != RequestKind::kMessage || unsignalled_ >= kSignalEvery ||
      free_ == 0) {
    id.slots = unsignalled_;
    pending_ += unsignalled_;
    unsignalled_ = 0;
    request.send_flags |= IBV_SEND_SIGNALED;
  }
  request.wr_id = pack(id);
  if (held_ == 0) {
    return give(&request, error);
  }
  auto& kept = chain_[chained_];
  kept.request = request;
  kept.request.next = nullptr;
  if (request.num_sge != 0) {
    kept.segment = *request.sg_list;
    kept.request.sg_list = &kept.segment;
  }
  if (chained_ > 0) {
    chain_[chained_ - 1].request.next = &kept.request;
  }
  return ++chained_ < kChain || flush(error);
}

// A request has one segment at most.
void SendQueue::count(const ibv_send_wr& request) {
  const uint64_t bytes = request.num_sge != 0 ? request.sg_list->length : 0;
  const bool reads = request.opcode == IBV_WR_RDMA_READ;
  ++traffic_.requests;
  (reads ? traffic_.readBytes : traffic_.sentBytes) += bytes;
}

bool SendQueue::flush(int& error) {
  return std::exchange(chained_, 0) == 0 || give(&chain_[0].request, error);
}

bool SendQueue::give(ibv_send_wr* list, int& error) {
  const auto* const first = pair_.postSend(list, error);
  for (const auto* bad = first; bad != nullptr; bad = bad->next) {
    const auto id = unpack(bad->wr_id);
    refused_.bulk += id.kind == RequestKind::kBulk ? 1 : 0;
    if (id.kind == RequestKind::kPush && refused_.push == 0) {
      refused_.push = id.number;
    }
  }
  return first == nullptr;
}

RequestId SendQueue::completed(uint64_t workRequestId) {
  const auto id = unpack(workRequestId);
  free_ += id.slots;
  pending_ -= id.slots;
  return id;
}

} // namespace dlslime::rdma
