#include <algorithm>

#include "engine/two_sided/outbound.h"

// Part of Outbound: sends when the connection is replaced.

namespace dlslime {

void Outbound::sever() {
  severed_ = true;
}

void Outbound::keepUnconfirmed(std::vector<SentMessage> messages) {
  connection_ = nullptr;
  targets_.clear(); // offers ended with the connection
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

// Ends the pushes that the peer has seen, however the pushes ended here.
// Announces the rest under the old sequence numbers, because the offered memory
// is gone; cancelled pushes become Nops.
void Outbound::endPushes(uint64_t peerLast) {
  for (const auto id : pushes_.ids()) {
    auto [operation, rts, sequence, over] = pushes_.take(id);
    if (sequence <= peerLast) {
      completions_.finish(std::move(operation), {});
      continue;
    }
    if (!operation->cancelStatus.ok()) {
      sendInPlace(wire::Nop{}, sequence);
      const auto why = operation->cancelStatus;
      completions_.finish(std::move(operation), why);
      continue;
    }
    rts.id = exposures_.insert({});
    operation->stage = Operation::Stage::kAnnounced;
    operation->transferId = rts.id;
    *exposures_.find(rts.id) = {std::move(operation), rts};
    sendInPlace(rts, sequence);
  }
  std::sort(
      unconfirmed_.begin(),
      unconfirmed_.end(),
      [](const auto& one, const auto& other) {
        return one.header.sequence < other.header.sequence;
      });
}

// Names our memory anew: all names told to the peer held for the connection
// that is gone.
void Outbound::exposeAgain() {
  shown_.clear();
  for (const auto id : exposures_.ids()) {
    auto& exposure = *exposures_.find(id);
    if (!exposure.failed) {
      exposure.rts.memory = expose(id, *exposure.operation);
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
      sendControl(wire::Moved{exposure.rts});
    }
  }
}

// Puts the new place of the memory into a message that is still to be sent.
template <typename Message>
void Outbound::renewMemory(MessageHeader& header) {
  auto message = wire::decode<Message>(header);
  if (auto* const exposure = exposures_.find(message.id)) {
    message.memory = exposure->rts.memory;
    exposure->moved = false; // the message tells
    wire::rewrite(header, message);
  }
}

// Renews a message that is still to be sent.
void Outbound::renew(MessageHeader& header) {
  switch (header.type) {
    case MessageType::kRtr:
    case MessageType::kResolved: // the peer asks again
      wire::rewrite(header, wire::Nop{});
      return;
    case MessageType::kRts:
      renewMemory<wire::Rts>(header);
      return;
    case MessageType::kMoved:
      renewMemory<wire::Moved>(header);
      return;
    default:
      return;
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
