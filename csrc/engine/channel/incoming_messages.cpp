#include "engine/channel/incoming_messages.h"

#include <string>

#include "engine/channel/peer_channel.h"

namespace dlslime {

namespace {
// Limits on messages kept behind a missing message, since a peer may leave a
// gap for ever.
constexpr size_t kMostKept = 65536;
constexpr size_t kMostKeptBytes = size_t{64} << 20;
// Limit on answers waiting for the peer to read, of about 130 bytes each.
constexpr size_t kMostAnswers = 262144;
} // namespace

void IncomingMessages::onMessage(
    const MessageHeader& header,
    ByteSpan payload) {
  if (header.type > kLastMessageType) {
    channel_.fail(invalidMessage(header, channel_.peer()));
    return;
  }
  inOrder(header, payload);
}

void IncomingMessages::inOrder(const MessageHeader& header, ByteSpan payload) {
  if (!channel_.alive()) {
    return;
  }
  switch (sequencer_.check(header, payload)) {
    case Sequencer::Verdict::kNow:
      route(header, payload);
      handleKept();
      return;
    case Sequencer::Verdict::kLater:
      refuseGap();
      return;
    case Sequencer::Verdict::kSeen:
      return;
  }
}

void IncomingMessages::refuseGap() {
  if (sequencer_.kept() <= kMostKept &&
      sequencer_.keptBytes() <= kMostKeptBytes) {
    return;
  }
  channel_.fail(Status(
      ErrorCode::kTransportFailed,
      "a message is missing, and " + std::to_string(sequencer_.kept()) +
          " later messages of " + std::to_string(sequencer_.keptBytes()) +
          " bytes have come (at most " + std::to_string(kMostKept) + " of " +
          std::to_string(kMostKeptBytes) +
          " bytes are kept until the missing message comes)"));
}

bool IncomingMessages::handleKept() {
  return sequencer_.drain(
      kMessagesPerPoll,
      [this](const auto& kept, ByteSpan bytes) REQUIRES(kEngineLock) {
        if (channel_.alive()) {
          route(kept, bytes);
        }
      });
}

void IncomingMessages::route(const MessageHeader& header, ByteSpan payload) {
  if (const auto status = router_->route(header, payload); !status.ok()) {
    channel_.fail(status);
  }
  limitAnswers();
}

void IncomingMessages::limitAnswers() {
  if (channel_.alive() && parts_->out.waitingControls() > kMostAnswers) {
    channel_.fail(Status(
        ErrorCode::kTransportFailed,
        "the peer has asked for " + std::to_string(kMostAnswers) +
            " answers and reads none"));
  }
}

Placement IncomingMessages::placementOf(
    const MessageHeader& header,
    ByteSpan begin) {
  return channel_.alive() && sequencer_.isNext(header)
      ? router_->placementOf(header, begin)
      : Placement{};
}

void IncomingMessages::onPlaced(const MessageHeader& header, Fault fault) {
  if (!channel_.alive() ||
      sequencer_.check(header, {}) != Sequencer::Verdict::kNow) {
    return;
  }
  router_->onPlaced(header, fault);
  limitAnswers();
  handleKept();
}

void IncomingMessages::onLanded(
    uint64_t offerId,
    uint16_t sequenceBits,
    size_t length) {
  const auto pushed = parts_->in.advertised().pushedInto(offerId, length);
  if (pushed) {
    auto header = wire::encode(*pushed);
    header.sequence = sequencer_.nearest(sequenceBits);
    inOrder(header, {});
  } // else the offer has ended with the channel, or the event is repeated
}

void IncomingMessages::onParted() {
  channel_.handOver(Status(
      ErrorCode::kTransportFailed,
      "the other end has found a better connection"));
}

} // namespace dlslime
