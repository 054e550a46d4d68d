#include "engine/peer_channel.h"

#include <algorithm>

#include "core/log.h"

namespace dlslime {

namespace {
// Messages that overtook others wait here; a peer that leaves a gap for ever
// must not make us keep more.
constexpr size_t kMostKept = 65536;
} // namespace

void PeerChannel::connected(
    std::unique_ptr<Connection> connection,
    std::vector<RejectedRoute> rejected) {
  connection_ = std::move(connection);
  rejected_ = std::move(rejected);
  auto limits = limits_;
  limits.eagerBytes = std::min(limits.eagerBytes, connection_->maxPayload());
  out_.emplace(*connection_, completions_, limits);
  in_.emplace(
      *connection_, *out_, completions_, sequencer_, limits.unexpectedBytes);
  route_ = connection_->route();
  toItself_ = route_ == "self";
  state_ = State::kOpen;
}

std::string PeerChannel::copyName() const {
  return connection_ ? std::string(connection_->copyName()) : copyName_;
}

bool PeerChannel::poll(int most) {
  if (!connection_) {
    return false;
  }
  Status broken;
  connection_->beginBatch();
  bool any = connection_->poll(*this, broken, most);
  if (broken.ok() && state_ == State::kOpen) {
    any |= out_->flush();
  }
  connection_->endBatch();
  if (!broken.ok()) {
    fail(peerClosed_.ok() ? broken : peerClosed_);
    return true;
  }
  return any;
}

bool PeerChannel::claimCopy(CopyJob& job) {
  if (!connection_ || !connection_->claimCopy(job)) {
    return false;
  }
  ++copies_;
  return true;
}

void PeerChannel::finishCopy(const CopyJob& job) {
  connection_->finishCopy(job);
  if (--copies_ == 0 && state_ == State::kFailed) {
    out_->releaseFailed();
  }
}

void PeerChannel::fail(const Status& why) {
  if (state_ == State::kFailed) {
    return;
  }
  state_ = State::kFailed;
  failure_ = why;
  if (connection_) {
    out_->fail(why);
    in_->fail(why);
    if (copies_ == 0) {
      out_->releaseFailed();
    }
  }
  owner_.onChannelFailed(*this, why);
}

void PeerChannel::peerClosed(const Status& why) {
  while (state_ == State::kOpen && poll()) {
    // What it sent before it went still counts.
  }
  peerClosed_ = why;
  if (connection_) {
    connection_->peerClosed();
  }
  if (!connection_ || connection_->drained()) {
    fail(why);
  } // else poll() will find the route broken
}

std::unique_ptr<Connection> PeerChannel::takeConnection() {
  copyName_ = copyName();
  // The two halves stay: groups may still hold what came through them. Both
  // have failed, and do not touch the connection any more.
  return std::move(connection_);
}

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

void PeerChannel::onMessage(const MessageHeader& header, ByteSpan payload) {
  if (header.type > kLastMessageType) {
    refuse(header);
    return;
  }
  inOrder(header, payload);
}

void PeerChannel::refuse(const MessageHeader& header) {
  fail(Status(
      ErrorCode::kTransportFailed,
      "a message of type " + std::to_string(static_cast<int>(header.type)) +
          " from process " + std::to_string(peer_.pid) + ", which can't be"));
}

void PeerChannel::inOrder(const MessageHeader& header, ByteSpan payload) {
  if (state_ != State::kOpen) {
    return;
  }
  switch (sequencer_.check(header, payload)) {
    case Sequencer::Verdict::kNow:
      dispatch(header, payload);
      sequencer_.drain([this](const auto& kept, ByteSpan bytes) {
        if (state_ == State::kOpen) {
          dispatch(kept, bytes);
        }
      });
      return;
    case Sequencer::Verdict::kLater:
      if (sequencer_.kept() > kMostKept) {
        fail(Status(
            ErrorCode::kTransportFailed,
            "a message is missing and " + std::to_string(kMostKept) +
                " later ones have come"));
      }
      return;
    case Sequencer::Verdict::kSeen:
      return;
  }
}

void PeerChannel::dispatch(const MessageHeader& header, ByteSpan payload) {
  switch (header.type) {
    case MessageType::kJoin:
    case MessageType::kJoined:
    case MessageType::kStale:
    case MessageType::kLeave:
    case MessageType::kTruncated:
      owner_.onMembership(shared_from_this(), header);
      return;
    case MessageType::kEager:
    case MessageType::kAnnounce:
    case MessageType::kRevoke:
    case MessageType::kPushed:
      toGroup(header, payload);
      return;
    case MessageType::kData:
      in_->onData(header, payload);
      return;
    case MessageType::kRequest:
      out_->onRequest(header);
      return;
    case MessageType::kFinish:
      out_->onFinish(header);
      return;
    case MessageType::kCredit:
      out_->onCredit(header);
      return;
    case MessageType::kReady:
      out_->onReady(header);
      return;
    case MessageType::kRetract:
      out_->onRetract(header);
      return;
    case MessageType::kRetracted:
      in_->onRetracted(header);
      return;
  }
  refuse(header);
}

void PeerChannel::toGroup(const MessageHeader& header, ByteSpan payload) {
  Group* const group = owner_.groupOf(*this, header);
  if (group == nullptr) {
    in_->refuse(header);
  } else if (header.type == MessageType::kEager) {
    in_->onEager(*group, header, payload);
  } else if (header.type == MessageType::kAnnounce) {
    in_->onAnnounce(*group, header);
  } else if (header.type == MessageType::kRevoke) {
    in_->onRevoke(*group, header);
  } else if (!in_->onPush(*group, header)) {
    refuse(header);
  }
}

} // namespace dlslime
