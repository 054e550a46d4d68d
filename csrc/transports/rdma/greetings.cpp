#include "transports/rdma/greetings.h"

#include <algorithm>

#include "base/bytes.h"

namespace dlslime::rdma {

namespace {
// Time granted to the remaining rails after the first greeting has passed. A
// lost packet costs 0.54 s by default.
constexpr milliseconds kOtherRailsTime{1500};
} // namespace

void Greetings::post() {
  for (const auto& rail : rails_.all()) {
    postOver(*rail);
  }
}

// Posts the greeting: a READ of one packet of the largest size, then an empty
// credit. The ports may agree on a packet size which a switch between them
// drops, so that small messages pass and others never do. Requests complete in
// order, so the credit's completion covers the READ.
void Greetings::postOver(Rail& rail) {
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
  if (rails_.post(rail, request, {RequestKind::kMessage, 0, 0}, "a read")) {
    rails_.postCredit(rail, kFirstPosition, RequestKind::kFlush);
  }
}

// Notes whether the rail's greeting has passed or failed meanwhile.
void Greetings::look(Rail& rail) {
  ibv_wc completion{};
  if (rail.greeted || !rail.problem.empty() ||
      rail.completions->poll(&completion, 1) == 0) {
    return;
  }
  rail.queue.completed(completion.wr_id);
  rail.greeted = completion.status == IBV_WC_SUCCESS;
  if (!rail.greeted) {
    rail.problem = describeCompletion(completion.status, completion.vendor_err);
  }
}

std::string Greetings::problems() const {
  std::string text;
  for (const auto& rail : rails_.all()) {
    if (!rail->problem.empty()) {
      text +=
          (text.empty() ? "" : "; ") + rail->nic->name() + ": " + rail->problem;
    }
  }
  return text;
}

bool Greetings::verify(Bytes& result) {
  uint32_t good = 0;
  bool waiting = false;
  for (const auto& rail : rails_.all()) {
    look(*rail);
    good |= rail->greeted ? 1U << rail->number : 0;
    waiting |= !rail->greeted && rail->problem.empty();
  }
  if (good == 0 && !waiting) {
    throw Error(
        ErrorCode::kUnavailable,
        "the connection is made, but no message passes (" + problems() + ")");
  }
  if (good != 0 && waiting) {
    verifyBy_ = std::min(verifyBy_, deadlineAfter(kOtherRailsTime));
  }
  if (good == 0 || (waiting && Clock::now() < verifyBy_)) {
    return false;
  }
  keep_(good);
  ByteWriter writer;
  writer.number(good);
  result = writer.take();
  return true;
}

void Greetings::confirm(ByteSpan result) {
  ByteReader reader(result);
  const auto good = reader.number<uint32_t>();
  if (!reader.atEnd()) {
    throw Error(ErrorCode::kPeerFailed, "the confirmation is malformed");
  }
  keep_(good);
}

} // namespace dlslime::rdma
