#include "transports/rdma/rdma_connection.h"

#include <algorithm>

// Pushes: messages written straight into the receiver's memory.

namespace dlslime::rdma {

namespace {
// Sizes of pushed messages. Larger messages are pulled in parts over all rails,
// and do not delay the messages behind them.
constexpr PushAbility::Range kPushed{kLeastPushed, kLeastStriped - 1};
constexpr int kSlotShift = 16;
} // namespace

PushAbility::Range RdmaConnection::range() const {
  return kPushed;
}

std::optional<RemoteBuffer> RdmaConnection::offer(
    uint64_t id,
    MemoryView view) {
  auto region = regions_.findFirst(view);
  return region && broken_.ok() ? offered_.offer(id, view, std::move(region))
                                : std::nullopt;
}

PushAbility::Result RdmaConnection::push(
    uint64_t id,
    RemoteBuffer target,
    MemoryView source,
    uint64_t sequence) {
  auto region = regions_.findFirst(source);
  if (!region || target.slot >= OfferedMemory::kSlots) {
    return Result::kNever;
  }
  if (!broken_.ok() || !peerReady_ || !first().queue.room()) {
    return Result::kNoRoom;
  }
  ibv_sge segment{};
  segment.addr = reinterpret_cast<uint64_t>(source.data);
  segment.length = static_cast<uint32_t>(source.size);
  segment.lkey = region->localKey();
  ibv_send_wr request{};
  request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  request.sg_list = &segment;
  request.num_sge = 1;
  request.imm_data = htobe32(
      kPushBit | uint32_t{target.slot} << kSlotShift |
      static_cast<uint16_t>(sequence));
  request.wr.rdma.remote_addr = target.address;
  request.wr.rdma.rkey = target.keys[0];
  const auto number = nextPush_++;
  pushing_.push_back({number, id, std::move(region)});
  int error = 0;
  if (!first().queue.post(request, RequestKind::kPush, number, error)) {
    pushing_.pop_back();
    breakWith(first(), "a push could not be posted: " + errnoText(error));
    return Result::kNoRoom; // nothing goes out any more
  }
  return Result::kPosted;
}

void RdmaConnection::onPushed(
    uint32_t number,
    const Status& status,
    ConnectionEvents& events) {
  // A queue pair completes its requests in order, failed requests included.
  for (auto it = pushing_.begin(); it != pushing_.end(); ++it) {
    if (it->number != number) {
      continue;
    }
    if (!status.ok()) {
      it->over = true;
      return;
    }
    const auto id = it->id;
    pushing_.erase(it);
    events.onPushed(id, status);
    return;
  }
}

// Marks the push with number `first` and all later pushes as failed, because
// the device refused them. 0: none was refused.
void RdmaConnection::losePushes(uint32_t first) {
  auto push = std::find_if(
      pushing_.begin(), pushing_.end(), [first](const Pushing& known) {
        return known.number == first;
      });
  for (; push != pushing_.end(); ++push) {
    push->over = true;
  }
}

void RdmaConnection::reportFailedPushes(ConnectionEvents& events) {
  while (!pushing_.empty() && pushing_.front().over) {
    const auto id = pushing_.front().id;
    pushing_.pop_front();
    events.onPushed(id, broken_);
  }
}

void RdmaConnection::onLanded(
    uint32_t immediate,
    size_t bytes,
    ConnectionEvents& events) {
  const auto slot =
      static_cast<uint16_t>((immediate & kPositionMask) >> kSlotShift);
  const auto id = offered_.idOf(slot);
  if (id == 0) {
    breakWith(
        first(),
        "the peer has pushed " + std::to_string(bytes) + " bytes into slot " +
            std::to_string(slot) + ", which was not offered");
    return;
  }
  events.onLanded(id, static_cast<uint16_t>(immediate), bytes);
}

} // namespace dlslime::rdma
