#include "torch_ext/store/message_store.h"

#include <algorithm>

#include "base/bytes.h"
#include "torch_ext/store/store_exchange.h"

namespace dlslime {

MessageStore::MessageStore(
    const std::shared_ptr<GroupHandle>& handle,
    uint32_t tag,
    std::chrono::milliseconds limit,
    std::function<void()> whileWaiting)
    : SetupStore(limit),
      exchange_(std::make_shared<StoreExchange>(
          handle,
          tag,
          limit,
          std::move(whileWaiting))) {
  exchange_->start();
}

MessageStore::~MessageStore() {
  exchange_->close();
}

void MessageStore::finish() {
  exchange_->finish();
}

void MessageStore::fail(const std::string& why) {
  exchange_->fail(why);
}

std::string MessageStore::problem() const {
  return exchange_->problem();
}

std::string MessageStore::describeLate(milliseconds limit) const {
  return exchange_->lateText(limit);
}

void MessageStore::set(
    const std::string& key,
    const std::vector<uint8_t>& value) {
  requireKeySize(key.size(), StoreExchange::kMostKey);
  const auto* const data = reinterpret_cast<const std::byte*>(value.data());
  exchange_->set(key, {data, value.size()});
}

std::vector<uint8_t> MessageStore::get(const std::string& key) {
  exchange_->awaitKeys({key}, timeout_);
  const auto value = exchange_->find(key);
  std::vector<uint8_t> bytes(value->size());
  copyBytes(bytes.data(), value->data(), value->size());
  return bytes;
}

bool MessageStore::check(const std::vector<std::string>& keys) {
  return std::all_of(keys.begin(), keys.end(), [&](const auto& key) {
    return exchange_->find(key).has_value();
  });
}

void MessageStore::wait(
    const std::vector<std::string>& keys,
    const std::chrono::milliseconds& /*timeout*/) {
  exchange_->awaitKeys(keys, timeout_);
}

} // namespace dlslime
