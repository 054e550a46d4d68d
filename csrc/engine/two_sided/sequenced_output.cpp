#include "engine/two_sided/sequenced_output.h"

#include <algorithm>
#include <iterator>
#include <string>

namespace dlslime {

Fault SequencedOutput::sendGathered(
    MessageHeader& header,
    const std::vector<ByteSpan>& places) {
  header.sequence = next_;
  const auto fault = connection_->gatherer()->sendGathered(header, places);
  next_ += fault == Fault::kNone ? 1 : 0;
  return fault;
}

void SequencedOutput::fail(const Status& why) {
  failed_ = true;
  failure_ = why;
  unconfirmed_.clear();
}

void SequencedOutput::keepUnconfirmed(std::vector<SentMessage> messages) {
  connection_ = nullptr;
  unconfirmed_.insert(
      unconfirmed_.begin(),
      std::make_move_iterator(messages.begin()),
      std::make_move_iterator(messages.end()));
}

void SequencedOutput::resume(Connection& connection, uint64_t peerLast) {
  connection_ = &connection;
  severed_ = false;
  std::erase_if(unconfirmed_, [peerLast](const SentMessage& message) {
    return message.header.sequence <= peerLast;
  });
}

Status SequencedOutput::orderUnconfirmed(uint64_t peerLast) {
  std::sort(
      unconfirmed_.begin(),
      unconfirmed_.end(),
      [](const auto& one, const auto& other) {
        return one.header.sequence < other.header.sequence;
      });
  auto expected = peerLast + 1;
  for (const auto& message : unconfirmed_) {
    if (message.header.sequence != expected) {
      break;
    }
    ++expected;
  }
  if (expected == next_) {
    return {};
  }
  return {
      ErrorCode::kTransportFailed,
      "message " + std::to_string(expected) + " of " +
          std::to_string(next_ - 1) +
          " was lost with the connection: the peer has seen " +
          std::to_string(peerLast)};
}

bool SequencedOutput::flushUnconfirmed() {
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
