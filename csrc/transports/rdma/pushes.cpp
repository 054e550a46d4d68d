#include "transports/rdma/pushes.h"

#include <algorithm>

namespace dlslime::rdma {

namespace {
// Sizes of pushed messages. Larger messages are pulled in parts over all rails,
// and do not delay the messages behind them.
constexpr PushAbility::Range kPushed{kLeastPushed, kLeastStriped - 1};
constexpr int kSlotShift = 16;
} // namespace

PushAbility::Range Pushes::range() const {
  return kPushed;
}

std::optional<RemoteBuffer> Pushes::offer(uint64_t id, MemoryView view) {
  auto region = memory_.findFirst(view);
  return region && rails_.whole() ? offered_.offer(id, view, std::move(region))
                                  : std::nullopt;
}

// Returns the number of the next push; 0 stands for none.
uint32_t Pushes::nextNumber() {
  lastNumber_ += lastNumber_ == UINT32_MAX ? 2 : 1;
  return lastNumber_;
}

PushAbility::Result Pushes::push(
    uint64_t id,
    RemoteBuffer target,
    MemoryView source,
    uint64_t sequence) {
  auto region = memory_.findFirst(source);
  if (!region || target.slot >= OfferedMemory::kSlots) {
    return Result::kNever;
  }
  if (!rails_.mayPost()) {
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
  const RequestId requestId{RequestKind::kPush, 0, nextNumber()};
  posted_.push_back({requestId.number, id, std::move(region)});
  if (!rails_.post(rails_.first(), request, requestId, "a push")) {
    posted_.pop_back();
    return Result::kNoRoom; // nothing goes out any more
  }
  return Result::kPosted;
}

void Pushes::onCompleted(
    uint32_t number,
    const Status& status,
    ConnectionEvents& events) {
  // A queue pair completes its requests in order, failed requests included.
  const auto push = std::find_if(
      posted_.begin(), posted_.end(), [number](const Posted& known) {
        return known.number == number;
      });
  if (push == posted_.end()) {
    return;
  }
  if (!status.ok()) {
    push->failed = true;
    return;
  }
  const auto id = push->id;
  posted_.erase(push);
  events.onPushed(id, status);
}

void Pushes::lose(uint32_t first) {
  auto push = std::find_if(
      posted_.begin(), posted_.end(), [first](const Posted& known) {
        return known.number == first;
      });
  for (; push != posted_.end(); ++push) {
    push->failed = true;
  }
}

void Pushes::reportFailed(ConnectionEvents& events) {
  while (!posted_.empty() && posted_.front().failed) {
    const auto id = posted_.front().id;
    posted_.pop_front();
    events.onPushed(id, rails_.broken());
  }
}

void Pushes::onLanded(
    uint32_t immediate,
    size_t bytes,
    ConnectionEvents& events) {
  const auto slot =
      static_cast<uint16_t>((immediate & kPositionMask) >> kSlotShift);
  const auto id = offered_.idOf(slot);
  if (id == 0) {
    rails_.breakWith(
        rails_.first(),
        "the peer has pushed " + std::to_string(bytes) + " bytes into slot " +
            std::to_string(slot) + ", which was not offered");
    return;
  }
  events.onLanded(id, static_cast<uint16_t>(immediate), bytes);
}

} // namespace dlslime::rdma
