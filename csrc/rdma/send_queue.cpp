#include "rdma/send_queue.h"

namespace dlslime::rdma {

namespace {
// One completion for so many requests: their cost is spread, and the queue of
// hundreds is never empty for want of one.
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
  RequestId id{kind, 0, number};
  if (kind != RequestKind::kMessage || unsignalled_ >= kSignalEvery ||
      free_ == 0) {
    id.slots = unsignalled_;
    pending_ += unsignalled_;
    unsignalled_ = 0;
    request.send_flags |= IBV_SEND_SIGNALED;
  }
  request.wr_id = pack(id);
  return pair_.postSend(&request, error);
}

RequestId SendQueue::completed(uint64_t workRequestId) {
  const auto id = unpack(workRequestId);
  free_ += id.slots;
  pending_ -= id.slots;
  return id;
}

} // namespace dlslime::rdma
