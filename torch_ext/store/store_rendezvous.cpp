#include "torch_ext/store/store_rendezvous.h"

#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <optional>
#include <string_view>

#include "base/status.h"
#include "interface/memory.h"
#include "torch_ext/store/underlying_store.h"
#include "torch_ext/support/python_end.h"

namespace dlslime {

namespace {

std::string full(const std::string& key) {
  return "dlslime/" + key;
}

bool isOfTorch(c10d::Store* store) {
  store = underlyingStore(store);
  return underlyingTcpStore(store) != nullptr ||
      dynamic_cast<c10d::HashStore*>(store) != nullptr ||
      dynamic_cast<c10d::FileStore*>(store) != nullptr;
}

// Returns " at node1:29500 (...)"; empty if the store has no host.
std::string placeOf(c10d::Store* store) {
  const auto* const tcp = underlyingTcpStore(store);
  return tcp == nullptr
      ? ""
      : " at " + tcp->getHost() + ":" + std::to_string(tcp->getPort()) +
          " (see whether the process that hosts it runs)";
}

// Returns whether get() may find the keys. A store written in Python may lack
// check(); get() then waits, which blocks only the address directory's own
// thread.
bool mayHave(c10d::Store& store, const std::vector<std::string>& names) {
  try {
    return store.check(names);
  } catch (const std::exception& error) {
    if (std::string_view(error.what()).find("pure virtual") ==
        std::string_view::npos) {
      throw;
    }
    return true;
  }
}

Bytes toBytes(const std::vector<uint8_t>& value) {
  Bytes bytes(value.size());
  copyBytes(bytes.data(), value.data(), value.size());
  return bytes;
}

} // namespace

StoreRendezvous::StoreRendezvous(c10::intrusive_ptr<c10d::Store> store)
    : store_(std::move(store)), ofPython_(!isOfTorch(store_.get())) {}

StoreRendezvous::~StoreRendezvous() {
  dropOrLeak(store_);
}

// Calls `call`. Any exception of the store becomes an Error.
template <typename Call>
auto StoreRendezvous::guarded(const char* what, const Call& call) const {
  std::optional<PythonScope> scope;
  if (ofPython_ && !scope.emplace()) {
    throw Error(ErrorCode::kCancelled, "this process's Python has ended");
  }
  try {
    return call();
  } catch (const std::exception& error) {
    // Keeps the first line: texts of torch go on with a C++ stack.
    const std::string text = error.what();
    throw Error(
        ErrorCode::kUnavailable,
        "the group's store" + placeOf(store_.get()) + " failed: " + what +
            ": " + text.substr(0, text.find('\n')));
  }
}

void StoreRendezvous::set(const std::string& key, const Bytes& value) {
  std::vector<uint8_t> bytes(value.size());
  copyBytes(bytes.data(), value.data(), value.size());
  guarded("set", [&] { store_->set(full(key), bytes); });
}

std::optional<Bytes> StoreRendezvous::tryGet(const std::string& key) {
  auto values = tryGetAll({key});
  return values ? std::optional(std::move(values->front())) : std::nullopt;
}

std::optional<std::vector<Bytes>> StoreRendezvous::tryGetAll(
    const std::vector<std::string>& keys) {
  return guarded("get", [&]() -> std::optional<std::vector<Bytes>> {
    std::vector<std::string> names;
    for (const auto& key : keys) {
      names.push_back(full(key));
    }
    if (!mayHave(*store_, names)) {
      return std::nullopt;
    }
    std::vector<Bytes> values;
    if (names.size() > 1 && store_->hasExtendedApi()) {
      for (const auto& value : store_->multiGet(names)) {
        values.push_back(toBytes(value));
      }
      return values;
    }
    for (const auto& name : names) {
      values.push_back(toBytes(store_->get(name)));
    }
    return values;
  });
}

uint64_t StoreRendezvous::increment(const std::string& key) {
  return guarded(
      "add", [&] { return static_cast<uint64_t>(store_->add(full(key), 1)); });
}

std::shared_ptr<Rendezvous> StoreRendezvous::another() {
  return guarded("clone", [&] {
    auto other = store_->clone();
    // Checks that the clone works: a clone made in Python may have ended with
    // the last Python reference.
    other->check({full("probe")});
    return std::make_shared<StoreRendezvous>(std::move(other));
  });
}

} // namespace dlslime
