#include <algorithm>
#include <cstring>

#include "transports/rdma/rdma_connection.h"

// Messages over the eager ring, and the handling of completions.

namespace dlslime::rdma {

namespace {
// Number of received immediates after which receives are posted again, in a
// single call.
constexpr uint32_t kReceiveLump = 32;
} // namespace

void RdmaConnection::postRecord(uint32_t position, size_t bytes) {
  auto& rail = first();
  const size_t offset = position % kRingUnits * kRingUnit;
  ibv_sge segment{};
  segment.addr = reinterpret_cast<uint64_t>(memory_->mirror() + offset);
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
  int error = 0;
  if (!rail.queue.post(request, RequestKind::kMessage, 0, error)) {
    breakWith(rail, "a write could not be posted: " + errnoText(error));
  }
}

// Posts the greeting: a READ of one packet of the largest size, then an empty
// credit. The ports may agree on a packet size which a switch between them
// drops, so that small messages pass and others never do. Requests complete in
// order, so the credit's completion covers the READ.
void RdmaConnection::postGreeting(Rail& rail) {
  ibv_sge segment{};
  segment.addr = reinterpret_cast<uint64_t>(rail.scratch);
  segment.length = rail.pair.packetBytes();
  segment.lkey = rail.mirror.localKey();
  ibv_send_wr request{};
  request.opcode = IBV_WR_RDMA_READ;
  request.sg_list = &segment;
  request.num_sge = 1;
  request.wr.rdma.remote_addr = rail.peerRing;
  request.wr.rdma.rkey = rail.peerRingKey;
  int error = 0;
  if (!rail.queue.post(request, RequestKind::kMessage, 0, error)) {
    breakWith(rail, "a read could not be posted: " + errnoText(error));
    return;
  }
  postCredit(rail, kFirstPosition, RequestKind::kFlush);
}

bool RdmaConnection::postCredit(
    Rail& rail,
    uint32_t position,
    RequestKind kind) {
  ibv_send_wr request{};
  request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM; // without data
  request.imm_data = htobe32(position | kCreditBit);
  int error = 0;
  if (!rail.queue.post(request, kind, 0, error)) {
    breakWith(rail, "a credit could not be posted: " + errnoText(error));
    return false;
  }
  return true;
}

bool RdmaConnection::hasRoom(size_t payload) {
  return broken_.ok() && peerReady_ && first().queue.room() &&
      out_.fits(sizeof(MessageHeader) + payload);
}

bool RdmaConnection::send(const MessageHeader& header, ByteSpan payload) {
  if (!broken_.ok() || !peerReady_ || !first().queue.room()) {
    return false;
  }
  const size_t bytes = sizeof(header) + payload.size();
  const auto skipped = out_.head();
  const auto position = out_.reserve(bytes);
  if (!position) {
    return false;
  }
  if (*position != skipped) { // marks the skipped end for unconfirmed()
    std::memset(
        memory_->mirror() + skipped % kRingUnits * kRingUnit,
        0,
        sizeof(header));
  }
  std::byte* const record =
      memory_->mirror() + *position % kRingUnits * kRingUnit;
  MessageHeader stamped = header;
  stamped.payloadSize = static_cast<uint32_t>(payload.size());
  std::memcpy(record, &stamped, sizeof(stamped));
  copyBytes(record + sizeof(stamped), payload.data(), payload.size());
  // Returns true even if the device refused the request: the mirror keeps the
  // record, and the replacing connection sends the message again.
  postRecord(*position, bytes);
  return true;
}

void RdmaConnection::beginBatch() {
  for (const auto& rail : rails_) {
    rail->queue.hold();
  }
}

void RdmaConnection::endBatch() {
  for (const auto& rail : rails_) {
    int error = 0;
    if (!rail->queue.letGo(error)) {
      breakWith(*rail, "requests could not be posted: " + errnoText(error));
    }
  }
}

int RdmaConnection::pollRail(Rail& rail, ConnectionEvents& events, int most) {
  int taken = 0;
  while (taken < most) {
    const int count = rail.completions->poll(
        polled_.data(), std::min(kPollBatch, most - taken));
    for (int i = 0; i < count; ++i) {
      onCompletion(rail, polled_[static_cast<size_t>(i)], events);
    }
    returnCredit();
    taken += count;
    if (count < kPollBatch) {
      break;
    }
  }
  giveBackReceives(rail, kReceiveLump);
  return taken;
}

bool RdmaConnection::poll(ConnectionEvents& events, Status& broken, int most) {
  bool any = false;
  for (auto& rail : rails_) {
    try {
      any |= pollRail(*rail, events, most) > 0;
      if (rail->lost()) {
        breakWith(*rail, rail->nic->whyLost());
      }
    } catch (const Error& error) {
      breakWith(*rail, error.what());
    }
  }
  if (broken_.ok()) {
    postBulk();
  }
  // Failures caused by a broken connection are reported only after the owner
  // has learned of the break and decided what happens next.
  if (broken_.ok() || givenUp_) {
    any |= bulk_.report(events);
    reportFailedPushes(events);
  }
  broken = broken_;
  return any;
}

void RdmaConnection::giveBackReceives(Rail& rail, uint32_t least) {
  if (rail.takenReceives < least || !broken_.ok()) {
    return;
  }
  if (!rail.pair.postReceives(rail.takenReceives)) {
    breakWith(rail, "receives could not be posted");
    return;
  }
  rail.takenReceives = 0;
}

void RdmaConnection::onCompletion(
    Rail& rail,
    const ibv_wc& completion,
    ConnectionEvents& events) {
  const bool received = completion.status == IBV_WC_SUCCESS &&
      (completion.opcode & IBV_WC_RECV) != 0;
  if (received) {
    ++rail.takenReceives;
    onImmediate(completion, events);
    return;
  }
  if (completion.status != IBV_WC_SUCCESS) {
    breakWith(
        rail, describeCompletion(completion.status, completion.vendor_err));
  }
  if (completion.wr_id == kReceiveId) { // a flushed receive: no message follows
    flushed_ |= &rail == &first();
    return;
  }
  const auto id = rail.queue.completed(completion.wr_id);
  const auto status = completion.status == IBV_WC_SUCCESS
      ? Status()
      : broken_; // the first cause
  if (id.kind == RequestKind::kBulk) {
    bulk_.completed(rail, status);
  } else if (id.kind == RequestKind::kPush) {
    onPushed(id.number, status, events);
  } else if (id.kind == RequestKind::kFlush) {
    flushAsked_ = false;
  }
}

void RdmaConnection::onImmediate(
    const ibv_wc& completion,
    ConnectionEvents& events) {
  const uint32_t immediate = be32toh(completion.imm_data);
  peerReady_ = true;
  if ((immediate & (kCreditBit | kPushBit)) == 0) {
    onRecord(immediate, events);
    return;
  }
  if ((immediate & kCreditBit) == 0) {
    onLanded(immediate, completion.byte_len, events);
    return;
  }
  if (!out_.credit(immediate & kPositionMask)) {
    breakWith(
        first(),
        "the peer returned credit for unsent messages (position " +
            std::to_string(immediate & kPositionMask) + ")");
  }
}

void RdmaConnection::onRecord(uint32_t position, ConnectionEvents& events) {
  const size_t offset = position % kRingUnits * kRingUnit;
  MessageHeader header; // a private copy: the peer may overwrite the ring
  std::memcpy(&header, memory_->ring() + offset, sizeof(header));
  const size_t bytes = sizeof(header) + size_t{header.payloadSize};
  if (!in_.expects(position) || header.payloadSize > maxPayload() ||
      offset + bytes > kRingBytes) {
    breakWith(
        first(),
        "the peer wrote an invalid record of " +
            std::to_string(header.payloadSize) + " bytes at position " +
            std::to_string(position) + " of the ring");
    return;
  }
  events.onMessage(
      header, {memory_->ring() + offset + sizeof(header), header.payloadSize});
  in_.consume(position, bytes);
}

void RdmaConnection::returnCredit() {
  if (!broken_.ok() || !first().queue.room()) {
    return; // the next poll tries again
  }
  if (const auto credit = in_.takeCredit()) {
    giveBackReceives(first(), 1); // before the credit lets the peer use them
    if (broken_.ok()) {
      postCredit(first(), *credit, RequestKind::kMessage);
    }
  }
}

} // namespace dlslime::rdma
