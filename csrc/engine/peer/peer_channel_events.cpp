#include "engine/peer/peer_channel.h"

// Part of PeerChannel: what the peer sends, and which part gets it.

namespace dlslime {

namespace {
// Limits on messages kept behind a missing message, since a peer may leave a
// gap for ever.
constexpr size_t kMostKept = 65536;
constexpr size_t kMostKeptBytes = size_t{64} << 20;
// Limit on answers waiting for the peer to read, of about 130 bytes each.
constexpr size_t kMostAnswers = 262144;
} // namespace

void PeerChannel::onPulled(uint64_t pullId, const Status& status) {
  in_->rendezvous().onPulled(pullId, status);
}

void PeerChannel::onPushed(uint64_t pushId, const Status& status) {
  out_->onPushed(pushId, status);
}

void PeerChannel::onLanded(
    uint64_t offerId,
    uint16_t sequenceBits,
    size_t length) {
  if (const auto pushed = in_->advertised().pushedInto(offerId, length)) {
    auto header = wire::encode(*pushed);
    header.sequence = sequencer_.nearest(sequenceBits);
    inOrder(header, {});
  } // else the offer has ended with the channel, or the event is repeated
}

void PeerChannel::onTransferred(uint64_t id, const Status& status) {
  initiator_->onTransferred(id, status);
}

void PeerChannel::onRegistered(const RegionPtr& region, const Status& status) {
  try {
    initiator_->onRegistered(*region, status);
    target_->onRegistered(region, status);
  } catch (const std::bad_alloc&) { // work may be half done
    failForWantOfMemory();
  }
}

void PeerChannel::onParted() {
  handOver(Status(
      ErrorCode::kTransportFailed,
      "the other end has found a better connection"));
}

void PeerChannel::onMessage(const MessageHeader& header, ByteSpan payload) {
  if (header.type > kLastMessageType) {
    refuse(header);
    return;
  }
  inOrder(header, payload);
}

Placement PeerChannel::placementOf(
    const MessageHeader& header,
    ByteSpan begin) {
  if (!alive() || !sequencer_.isNext(header)) {
    return {};
  }
  if (header.type == MessageType::kGetData) {
    const auto data = wire::decode<wire::GetData>(header);
    return initiator_->receiver().placementOf(data, header.payloadSize);
  }
  if (header.type != MessageType::kPut) {
    return {};
  }
  const auto put = wire::decode<wire::Put>(header);
  return groupOf(put) != nullptr
      ? target_->placementOf(put, begin, header.payloadSize)
      : Placement{};
}

void PeerChannel::onPlaced(const MessageHeader& header, Fault fault) {
  if (!alive() || sequencer_.check(header, {}) != Sequencer::Verdict::kNow) {
    return;
  }
  if (header.type == MessageType::kGetData) {
    const auto data = wire::decode<wire::GetData>(header);
    initiator_->receiver().onPlacedData(data, header.payloadSize, fault);
  } else {
    const auto put = wire::decode<wire::Put>(header);
    target_->onPlacedPut(groupOf(put) != nullptr, put, fault);
  }
  limitAnswers();
  handleKept();
}

void PeerChannel::refuse(const MessageHeader& header) {
  fail(Status(
      ErrorCode::kTransportFailed,
      "a message of type " + std::to_string(static_cast<int>(header.type)) +
          " from process " + std::to_string(peer_.pid) +
          " is invalid at this point"));
}

void PeerChannel::askForShare(uint64_t id) {
  out_->sendControl(wire::Reshare{id});
}

void PeerChannel::addSharedInUse(std::set<uint64_t>& ids) {
  if (out_) {
    out_->addShownInUse(ids);
    target_->addShownInUse(ids);
  }
}

void PeerChannel::inOrder(const MessageHeader& header, ByteSpan payload) {
  if (!alive()) {
    return;
  }
  switch (sequencer_.check(header, payload)) {
    case Sequencer::Verdict::kNow:
      dispatch(header, payload);
      handleKept();
      return;
    case Sequencer::Verdict::kLater:
      if (sequencer_.kept() > kMostKept ||
          sequencer_.keptBytes() > kMostKeptBytes) {
        fail(Status(
            ErrorCode::kTransportFailed,
            "a message is missing, and " + std::to_string(sequencer_.kept()) +
                " later messages of " + std::to_string(sequencer_.keptBytes()) +
                " bytes have come (at most " + std::to_string(kMostKept) +
                " of " + std::to_string(kMostKeptBytes) +
                " bytes are kept until the missing message comes)"));
      }
      return;
    case Sequencer::Verdict::kSeen:
      return;
  }
}

bool PeerChannel::handleKept() {
  return sequencer_.drain(
      kMessagesPerPoll, [this](const auto& kept, ByteSpan bytes) {
        if (alive()) {
          dispatch(kept, bytes);
        }
      });
}

void PeerChannel::dispatch(const MessageHeader& header, ByteSpan payload) {
  handle(header, payload);
  limitAnswers();
}

void PeerChannel::limitAnswers() {
  if (alive() && out_->waitingControls() > kMostAnswers) {
    fail(Status(
        ErrorCode::kTransportFailed,
        "the peer has asked for " + std::to_string(kMostAnswers) +
            " answers and reads none"));
  }
}

void PeerChannel::handle(const MessageHeader& header, ByteSpan payload) {
  switch (header.type) {
    case MessageType::kJoin:
    case MessageType::kJoined:
    case MessageType::kStale:
    case MessageType::kLeave:
    case MessageType::kRefused:
      return owner_.onGroupMessage(shared_from_this(), header);
    case MessageType::kEager:
    case MessageType::kRts:
    case MessageType::kRevoke:
    case MessageType::kMoved:
    case MessageType::kPushed:
    case MessageType::kData:
    case MessageType::kRetracted:
      return toInbound(header, payload);
    case MessageType::kStreamRequest:
    case MessageType::kFinish:
    case MessageType::kCredit:
    case MessageType::kTruncated:
    case MessageType::kRtr:
    case MessageType::kRetract:
      return toOutbound(header);
    case MessageType::kResolved:
    case MessageType::kRevokeKey:
    case MessageType::kGetData:
    case MessageType::kPutAck:
      return toInitiator(header, payload);
    case MessageType::kResolve:
    case MessageType::kGetRequest:
    case MessageType::kPut:
    case MessageType::kKeyRevoked:
      return toTarget(header, payload);
    case MessageType::kShare:
    case MessageType::kUnshare:
    case MessageType::kReshare:
      return toGpus(header, payload);
    case MessageType::kNop:
      return;
  }
  refuse(header);
}

void PeerChannel::toInbound(const MessageHeader& header, ByteSpan payload) {
  switch (header.type) {
    case MessageType::kEager:
      return onEager(header, payload);
    case MessageType::kRts:
      return onRts(wire::decode<wire::Rts>(header));
    case MessageType::kRevoke: {
      const auto revoke = wire::decode<wire::Revoke>(header);
      return in_->onRevoke(groupOf(revoke), revoke);
    }
    case MessageType::kMoved: {
      const auto moved = wire::decode<wire::Moved>(header);
      return in_->onMoved(groupOf(moved), moved);
    }
    case MessageType::kData:
      return in_->rendezvous().onData(
          wire::decode<wire::Data>(header), payload);
    case MessageType::kRetracted:
      return in_->advertised().onRetracted(
          wire::decode<wire::Retracted>(header));
    default:
      return onPushedMessage(header);
  }
}

void PeerChannel::onEager(const MessageHeader& header, ByteSpan payload) {
  const auto eager = wire::decode<wire::Eager>(header);
  const auto status =
      in_->onEager(groupOf(eager), eager, header.sequence, payload);
  if (!status.ok()) {
    fail(status);
  }
}

void PeerChannel::onRts(const wire::Rts& rts) {
  if (const auto status = in_->onRts(groupOf(rts), rts); !status.ok()) {
    fail(status);
  }
}

void PeerChannel::onPushedMessage(const MessageHeader& header) {
  const auto pushed = wire::decode<wire::Pushed>(header);
  if (!in_->onPushed(groupOf(pushed), pushed, header.sequence)) {
    refuse(header);
  }
}

void PeerChannel::toOutbound(const MessageHeader& header) {
  switch (header.type) {
    case MessageType::kStreamRequest:
      return out_->onStreamRequest(wire::decode<wire::StreamRequest>(header));
    case MessageType::kFinish:
      return out_->onFinish(wire::decode<wire::Finish>(header));
    case MessageType::kCredit:
      return out_->onCredit(wire::decode<wire::Credit>(header));
    case MessageType::kTruncated: {
      const auto truncated = wire::decode<wire::Truncated>(header);
      return out_->onTruncated(groupOf(truncated), truncated);
    }
    case MessageType::kRtr:
      return out_->onRtr(wire::decode<wire::Rtr>(header));
    default:
      return out_->onRetract(wire::decode<wire::Retract>(header));
  }
}

void PeerChannel::toInitiator(const MessageHeader& header, ByteSpan payload) {
  switch (header.type) {
    case MessageType::kResolved:
      return initiator_->onResolved(wire::decode<wire::Resolved>(header));
    case MessageType::kRevokeKey:
      return initiator_->onRevokeKey(wire::decode<wire::RevokeKey>(header));
    case MessageType::kGetData:
      return initiator_->receiver().onGetData(
          wire::decode<wire::GetData>(header), payload);
    default:
      return initiator_->receiver().onPutAck(
          wire::decode<wire::PutAck>(header));
  }
}

void PeerChannel::toTarget(const MessageHeader& header, ByteSpan payload) {
  switch (header.type) {
    case MessageType::kResolve: {
      const auto resolve = wire::decode<wire::Resolve>(header);
      return target_->onResolve(groupOf(resolve) != nullptr, resolve);
    }
    case MessageType::kGetRequest: {
      const auto request = wire::decode<wire::GetRequest>(header);
      return target_->onGetRequest(
          groupOf(request) != nullptr, request, payload);
    }
    case MessageType::kPut: {
      const auto put = wire::decode<wire::Put>(header);
      return target_->onPut(groupOf(put) != nullptr, put, payload);
    }
    default:
      return target_->onKeyRevoked(wire::decode<wire::KeyRevoked>(header));
  }
}

void PeerChannel::toGpus(const MessageHeader& header, ByteSpan payload) {
  switch (header.type) {
    case MessageType::kShare:
      return gpus_.onShare(wire::decode<wire::Share>(header), payload);
    case MessageType::kUnshare:
      return gpus_.onUnshare(wire::decode<wire::Unshare>(header));
    default:
      return out_->onReshare(wire::decode<wire::Reshare>(header));
  }
}

} // namespace dlslime
