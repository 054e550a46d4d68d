#include <algorithm>

#include "engine/two_sided/outbound.h"

// What becomes of sends when the connection is replaced.

namespace dlslime {

void Outbound::sever() {
  severed_ = true;
}

void Outbound::keepUnconfirmed(std::vector<SentMessage> messages) {
  connection_ = nullptr;
  targets_.clear(); // what was offered went with the connection
  unconfirmed_.insert(
      unconfirmed_.begin(),
      std::make_move_iterator(messages.begin()),
      std::make_move_iterator(messages.end()));
}

Status Outbound::resume(Connection& connection, uint64_t peerLast) {
  connection_ = &connection;
  severed_ = false;
  limits_.eagerBytes = std::min(wanted_.eagerBytes, connection.maxPayload());
  std::erase_if(unconfirmed_, [peerLast](const SentMessage& message) {
    return message.header.sequence <= peerLast;
  });
  endPushes(peerLast);
  auto expected = peerLast + 1;
  for (const auto& message : unconfirmed_) {
    if (message.header.sequence != expected) {
      break;
    }
    ++expected;
  }
  if (expected != nextSequence_) {
    return {
        ErrorCode::kTransportFailed,
        "message " + std::to_string(expected) + " of " +
            std::to_string(nextSequence_ - 1) +
            " was lost with the connection: the peer has seen " +
            std::to_string(peerLast)};
  }
  exposeAgain();
  return {};
}

// A push that the peer has seen is over, whatever became of its completion.
// The others are announced in their place, since their targets are gone; or
// left out, if they have been cancelled.
void Outbound::endPushes(uint64_t peerLast) {
  for (const auto id : pushes_.ids()) {
    auto [operation, announce, over] = pushes_.take(id);
    if (announce.sequence <= peerLast) {
      completions_.finish(std::move(operation), {});
      continue;
    }
    if (!operation->cancelStatus.ok()) {
      announce.type = MessageType::kNop;
      unconfirmed_.push_back({announce, {}});
      const auto why = operation->cancelStatus;
      completions_.finish(std::move(operation), why);
      continue;
    }
    announce.id = exposures_.insert({});
    operation->stage = Operation::Stage::kAnnounced;
    operation->transferId = announce.id;
    *exposures_.find(announce.id) = {std::move(operation), announce};
    unconfirmed_.push_back({announce, {}});
  }
  std::sort(
      unconfirmed_.begin(),
      unconfirmed_.end(),
      [](const auto& one, const auto& other) {
        return one.header.sequence < other.header.sequence;
      });
}

// What the peer was told about our memory held for the connection that is gone.
void Outbound::exposeAgain() {
  shown_.clear();
  for (const auto id : exposures_.ids()) {
    auto& exposure = *exposures_.find(id);
    if (!exposure.failed) {
      setRemote(exposure.announce, expose(id, *exposure.operation));
    }
    exposure.moved = true;
  }
  for (auto& message : unconfirmed_) {
    renew(message.header);
  }
  for (auto& entry : outbox_) {
    renew(entry.header);
  }
  for (const auto id : exposures_.ids()) {
    auto& exposure = *exposures_.find(id);
    if (std::exchange(exposure.moved, false) && !exposure.streaming) {
      auto moved = exposure.announce;
      moved.type = MessageType::kMoved;
      sendControl(moved);
    }
  }
}

// Of a message that is still to be sent.
void Outbound::renew(MessageHeader& header) {
  if (header.type == MessageType::kRtr ||
      header.type == MessageType::kResolved) { // which is asked for again
    header.type = MessageType::kNop;
  } else if (
      header.type == MessageType::kRts || header.type == MessageType::kMoved) {
    if (auto* const exposure = exposures_.find(header.id)) {
      setRemote(header, remoteOf(exposure->announce));
      exposure->moved = false; // this tells it
    }
  }
}

bool Outbound::flushUnconfirmed() {
  while (!unconfirmed_.empty()) {
    const auto& message = unconfirmed_.front();
    if (!connection_->send(message.header, message.payload)) {
      return false;
    }
    unconfirmed_.pop_front();
  }
  return true;
}

} // namespace dlslime
