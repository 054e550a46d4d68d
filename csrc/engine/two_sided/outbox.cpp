#include "engine/two_sided/outbox.h"

#include <algorithm>
#include <utility>

namespace dlslime {

void Outbox::push(Message message) {
  message.order = nextOrder_++;
  if (message.eager) {
    message.eager->transferId = message.order;
  }
  controls_ += message.control ? 1 : 0;
  messages_.push_back(std::move(message));
}

void Outbox::pop() {
  controls_ -= messages_.front().control ? 1 : 0;
  messages_.pop_front();
}

// Keeps the place as long as messages wait before and behind the place.
bool Outbox::cancel(const OperationPtr& operation) {
  const auto place = std::lower_bound(
      messages_.begin(),
      messages_.end(),
      operation->transferId,
      [](const Message& message, uint64_t order) {
        return message.order < order;
      });
  if (place == messages_.end() || place->eager != operation) {
    return false;
  }
  place->eager = nullptr;
  place->header = {};
  place->cancelled = true;
  while (!messages_.empty() && messages_.front().cancelled) {
    messages_.pop_front();
  }
  while (!messages_.empty() && messages_.back().cancelled) {
    messages_.pop_back();
  }
  return true;
}

} // namespace dlslime
