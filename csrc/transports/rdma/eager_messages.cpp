#include "transports/rdma/eager_messages.h"

#include <cstring>

#include "base/bytes.h"

namespace dlslime::rdma {

bool EagerMessages::send(const MessageHeader& header, ByteSpan payload) {
  if (!rails_.mayPost()) {
    return false;
  }
  const size_t bytes = sizeof(header) + payload.size();
  const auto skipped = out_.head();
  const auto position = out_.reserve(bytes);
  if (!position) {
    return false;
  }
  if (*position != skipped) { // marks the skipped end for unconfirmed()
    std::memset(mirrorAt(skipped), 0, sizeof(header));
  }
  std::byte* const record = mirrorAt(*position);
  MessageHeader stamped = header;
  stamped.payloadSize = static_cast<uint32_t>(payload.size());
  std::memcpy(record, &stamped, sizeof(stamped));
  copyBytes(record + sizeof(stamped), payload.data(), payload.size());
  postRecord(*position, bytes);
  return true;
}

void EagerMessages::postRecord(uint32_t position, size_t bytes) {
  auto& rail = rails_.first();
  const size_t offset = position % kRingUnits * kRingUnit;
  ibv_sge segment{};
  segment.addr = reinterpret_cast<uint64_t>(memory_.mirror() + offset);
  segment.length = static_cast<uint32_t>(bytes);
  segment.lkey = rail.mirror.localKey();
  ibv_send_wr request{};
  request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  request.sg_list = &segment;
  request.num_sge = 1;
  request.imm_data = htobe32(position);
  request.send_flags = bytes <= rail.pair.inlineBytes() ? IBV_SEND_INLINE : 0;
  request.wr.rdma.remote_addr = rail.peerRing + offset;
  request.wr.rdma.rkey = rail.peerRingKey;
  rails_.post(rail, request, {RequestKind::kMessage, 0, 0}, "a write");
}

void EagerMessages::onRecord(uint32_t position, ConnectionEvents& events) {
  const size_t offset = position % kRingUnits * kRingUnit;
  MessageHeader header; // a private copy: the peer may overwrite the ring
  std::memcpy(&header, memory_.ring() + offset, sizeof(header));
  const size_t bytes = sizeof(header) + size_t{header.payloadSize};
  if (!in_.expects(position) || header.payloadSize > kMostPayload ||
      offset + bytes > kRingBytes) {
    rails_.breakWith(
        rails_.first(),
        "the peer wrote an invalid record of " +
            std::to_string(header.payloadSize) + " bytes at position " +
            std::to_string(position) + " of the ring");
    return;
  }
  events.onMessage(
      header, {memory_.ring() + offset + sizeof(header), header.payloadSize});
  in_.consume(position, bytes);
}

void EagerMessages::onCredit(uint32_t position) {
  if (!out_.credit(position)) {
    rails_.breakWith(
        rails_.first(),
        "the peer returned credit for unsent messages (position " +
            std::to_string(position) + ")");
  }
}

void EagerMessages::returnCredit() {
  auto& rail = rails_.first();
  if (!rails_.whole() || !rail.queue.room()) {
    return; // the next poll tries again
  }
  if (const auto credit = in_.takeCredit()) {
    giveBackReceives(rail, 1); // before the credit lets the peer use them
    if (rails_.whole()) {
      rails_.postCredit(rail, *credit, RequestKind::kMessage);
    }
  }
}

void EagerMessages::giveBackReceives(Rail& rail, uint32_t least) {
  if (rail.takenReceives < least || !rails_.whole()) {
    return;
  }
  if (!rail.pair.postReceives(rail.takenReceives)) {
    rails_.breakWith(rail, "receives could not be posted");
    return;
  }
  rail.takenReceives = 0;
}

std::vector<SentMessage> EagerMessages::unconfirmed() const {
  std::vector<SentMessage> messages;
  for (uint32_t at = out_.tail(); at != out_.head();) {
    const auto* const record = mirrorAt(at);
    SentMessage message;
    std::memcpy(&message.header, record, sizeof(message.header));
    if (message.header.type == MessageType{}) { // skipped to the ring's end
      at = (at + kRingUnits - at % kRingUnits) & kPositionMask;
      continue;
    }
    const auto* const payload = record + sizeof(message.header);
    message.payload.assign(payload, payload + message.header.payloadSize);
    at = (at + unitsOf(sizeof(message.header) + message.payload.size())) &
        kPositionMask;
    messages.push_back(std::move(message));
  }
  return messages;
}

} // namespace dlslime::rdma
