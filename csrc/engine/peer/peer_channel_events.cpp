#include "engine/peer/peer_channel.h"

// What comes from the peer, and who gets it.

namespace dlslime {

namespace {
// Messages that overtook others wait here; a peer that leaves a gap for ever
// must not make us keep more.
constexpr size_t kMostKept = 65536;
constexpr size_t kMostKeptBytes = size_t{64} << 20;
// Answers that wait for the peer to read. About 130 bytes each.
constexpr size_t kMostAnswers = 262144;
} // namespace

void PeerChannel::onPulled(uint64_t pullId, const Status& status) {
  in_->onPulled(pullId, status);
}

void PeerChannel::onPushed(uint64_t pushId, const Status& status) {
  out_->onPushed(pushId, status);
}

void PeerChannel::onLanded(
    uint64_t offerId,
    uint16_t sequenceBits,
    size_t length) {
  if (auto header = in_->headerOfPush(offerId)) {
    header->sequence = sequencer_.nearest(sequenceBits);
    header->length = length;
    inOrder(*header, {});
  } // else the offer has ended with its channel, or this is a repetition
}

void PeerChannel::onTransferred(uint64_t id, const Status& status) {
  initiator_->onTransferred(id, status);
}

void PeerChannel::onRegistered(const RegionPtr& region, const Status& status) {
  try {
    initiator_->onRegistered(*region, status);
    target_->onRegistered(region, status);
  } catch (const std::bad_alloc&) { // some may be half done
    failForWantOfMemory();
  }
}

void PeerChannel::onParted() {
  handOver(Status(
      ErrorCode::kTransportFailed, "the other end has found a better one"));
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
  switch (header.type) {
    case MessageType::kGetData:
      return initiator_->placementOf(header);
    case MessageType::kPut:
      return owner_.groupOf(*this, header) != nullptr
          ? target_->placementOf(header, begin)
          : Placement{};
    default:
      return {};
  }
}

void PeerChannel::onPlaced(const MessageHeader& header, Fault fault) {
  if (!alive() || sequencer_.check(header, {}) != Sequencer::Verdict::kNow) {
    return;
  }
  if (header.type == MessageType::kGetData) {
    initiator_->onPlacedChunk(header, fault);
  } else if (owner_.groupOf(*this, header) != nullptr) {
    target_->onPlacedPut(header, fault);
  } else {
    target_->refuse(header);
  }
  limitAnswers();
  handleKept();
}

void PeerChannel::refuse(const MessageHeader& header) {
  fail(Status(
      ErrorCode::kTransportFailed,
      "a message of type " + std::to_string(static_cast<int>(header.type)) +
          " from process " + std::to_string(peer_.pid) + ", which can't be"));
}

void PeerChannel::askForShare(uint64_t id) {
  MessageHeader ask;
  ask.type = MessageType::kReshare;
  ask.id = id;
  out_->sendControl(ask);
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
                " later ones of " + std::to_string(sequencer_.keptBytes()) +
                " bytes have come (at most " + std::to_string(kMostKept) +
                " of " + std::to_string(kMostKeptBytes) +
                " bytes are kept for it)"));
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
    case MessageType::kTruncated:
      owner_.onGroupMessage(shared_from_this(), header);
      return;
    case MessageType::kEager:
    case MessageType::kRts:
      if (const auto status = in_->admit(header, payload.size());
          !status.ok()) {
        fail(status);
        return;
      }
      toGroup(header, payload);
      return;
    case MessageType::kRevoke:
    case MessageType::kMoved:
    case MessageType::kPushed:
    case MessageType::kResolve:
    case MessageType::kGetRequest:
    case MessageType::kPut:
      toGroup(header, payload);
      return;
    case MessageType::kResolved:
    case MessageType::kRevokeKey:
    case MessageType::kGetData:
    case MessageType::kPutAck:
      toTransfers(header, payload);
      return;
    case MessageType::kKeyRevoked:
      target_->onForgotten(header);
      return;
    case MessageType::kShare:
    case MessageType::kUnshare:
      gpus_.onShare(header, payload);
      return;
    case MessageType::kData:
      in_->onData(header, payload);
      return;
    case MessageType::kReshare:
    case MessageType::kStreamRequest:
    case MessageType::kFinish:
    case MessageType::kCredit:
    case MessageType::kRtr:
    case MessageType::kRetract:
      toOutbound(header);
      return;
    case MessageType::kRetracted:
      in_->onRetracted(header);
      return;
    case MessageType::kNop:
      return;
  }
  refuse(header);
}

void PeerChannel::toOutbound(const MessageHeader& header) {
  if (header.type == MessageType::kReshare) {
    out_->onReshare(header);
  } else if (header.type == MessageType::kStreamRequest) {
    out_->onRequest(header);
  } else if (header.type == MessageType::kFinish) {
    out_->onFinish(header);
  } else if (header.type == MessageType::kCredit) {
    out_->onCredit(header);
  } else if (header.type == MessageType::kRtr) {
    out_->onReady(header);
  } else {
    out_->onRetract(header);
  }
}

void PeerChannel::toTransfers(const MessageHeader& header, ByteSpan payload) {
  if (header.type == MessageType::kResolved) {
    initiator_->onResolved(header);
  } else if (header.type == MessageType::kRevokeKey) {
    initiator_->onForget(header);
  } else if (header.type == MessageType::kGetData) {
    initiator_->onChunk(header, payload);
  } else {
    initiator_->onSettled(header);
  }
}

void PeerChannel::toGroup(const MessageHeader& header, ByteSpan payload) {
  ReceivingGroup* const group = owner_.groupOf(*this, header);
  if (header.type == MessageType::kResolve ||
      header.type == MessageType::kGetRequest ||
      header.type == MessageType::kPut) {
    toLender(group != nullptr, header, payload);
  } else if (group == nullptr) {
    in_->refuse(header);
  } else if (header.type == MessageType::kEager) {
    in_->onEager(*group, header, payload);
  } else if (header.type == MessageType::kRts) {
    in_->onAnnounce(*group, header);
  } else if (header.type == MessageType::kRevoke) {
    in_->onRevoke(*group, header);
  } else if (header.type == MessageType::kMoved) {
    in_->onMoved(*group, header);
  } else if (!in_->onPush(*group, header)) {
    refuse(header);
  }
}

void PeerChannel::toLender(
    bool known,
    const MessageHeader& header,
    ByteSpan payload) {
  if (!known) {
    target_->refuse(header);
  } else if (header.type == MessageType::kResolve) {
    target_->onResolve(header);
  } else if (header.type == MessageType::kGetRequest) {
    target_->onFetch(header, payload);
  } else {
    target_->onPut(header, payload);
  }
}

} // namespace dlslime
