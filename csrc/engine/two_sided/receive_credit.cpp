#include "engine/two_sided/receive_credit.h"

#include <algorithm>
#include <string>

namespace dlslime {

namespace {

// A lump is a small part of the limit, because a sender should seldom lack
// credit, and at most kMostLumpBytes, because the sender should get credit in
// time.
constexpr uint64_t kMostLumpBytes = 1024 * 1024;
constexpr uint64_t kLumpParts = 4;
constexpr uint64_t kRtsBytes = 256; // of bookkeeping

Status tooMuch(
    uint64_t kept,
    const char* what,
    uint64_t most,
    const std::string& limit) {
  return {
      ErrorCode::kTransportFailed,
      "the peer has sent more than this process keeps for receives that are "
      "not posted yet: " +
          std::to_string(kept) + " bytes of " + what + ", and at most " +
          std::to_string(most) + " " + limit};
}

} // namespace

ReceiveCredit::ReceiveCredit(Outbound& out, const Outbound::Limits& limits)
    : out_(out),
      limits_(limits),
      lump_(std::min<uint64_t>(
          kMostLumpBytes,
          limits.unexpectedBytes / kLumpParts)) {}

Status ReceiveCredit::admitEager(size_t payload) {
  const auto kept = unexpected_ + eagerCost(payload);
  if (kept > limits_.unexpectedBytes) {
    return tooMuch(
        kept,
        "eager messages",
        limits_.unexpectedBytes,
        "(DLSLIME_UNEXPECTED_LIMIT)");
  }
  unexpected_ = kept;
  return {};
}

Status ReceiveCredit::admitRts() {
  const auto kept = announced_ + kRtsBytes;
  if (kept > limits_.announcedBytes) {
    return tooMuch(
        kept,
        "announcements",
        limits_.announcedBytes,
        "(DLSLIME_ANNOUNCED_LIMIT, " + std::to_string(kRtsBytes) +
            " bytes each)");
  }
  announced_ = kept;
  return {};
}

void ReceiveCredit::returnEager(uint64_t cost) {
  owed_ += cost;
  if (owed_ < lump_) {
    return;
  }
  const wire::Credit credit{owed_};
  unexpected_ -= std::min(unexpected_, owed_);
  owed_ = 0;
  out_.sendControl(credit);
}

void ReceiveCredit::finish(
    uint64_t id,
    FinishStatus status,
    uint64_t capacity) {
  announced_ -= std::min(announced_, kRtsBytes);
  out_.sendControl(wire::Finish{status, id, capacity});
}

} // namespace dlslime
