#include "torch_ext/store_rendezvous.h"

#include "core/memory.h"
#include "core/status.h"

namespace dlslime {

namespace {

std::string full(const std::string& key) {
  return "dlslime/" + key;
}

// Whatever a store throws, as the engine's error.
template <typename Call>
auto guarded(const char* what, Call&& call) {
  try {
    return call();
  } catch (const std::exception& error) {
    throw Error(
        ErrorCode::kUnavailable,
        std::string("the group's store failed (") + what +
            "): " + error.what());
  }
}

} // namespace

void StoreRendezvous::set(const std::string& key, const Bytes& value) {
  std::vector<uint8_t> bytes(value.size());
  copyBytes(bytes.data(), value.data(), value.size());
  guarded("set", [&] { store_->set(full(key), bytes); });
}

std::optional<Bytes> StoreRendezvous::tryGet(const std::string& key) {
  return guarded("get", [&]() -> std::optional<Bytes> {
    if (!clone_) {
      clone_ = store_->clone();
    }
    if (!clone_->check({full(key)})) {
      return std::nullopt;
    }
    const auto bytes = clone_->get(full(key));
    Bytes value(bytes.size());
    copyBytes(value.data(), bytes.data(), bytes.size());
    return value;
  });
}

uint64_t StoreRendezvous::increment(const std::string& key) {
  return guarded(
      "add", [&] { return static_cast<uint64_t>(store_->add(full(key), 1)); });
}

} // namespace dlslime
