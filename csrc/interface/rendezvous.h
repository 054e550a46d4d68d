#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "interface/memory.h"

namespace dlslime {

// Key-value store by which the ranks of a group find each other: a c10d store,
// or a map in memory. Any thread. Calls throw Error{kUnavailable} if the store
// can't be reached.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;
  virtual void set(const std::string& key, const Bytes& value) = 0;
  virtual std::optional<Bytes> tryGet(const std::string& key) = 0;
  // Returns the values of all keys, or none if any is missing.
  virtual std::optional<std::vector<Bytes>> tryGetAll(
      const std::vector<std::string>& keys) {
    std::vector<Bytes> values;
    for (const auto& key : keys) {
      auto value = tryGet(key);
      if (!value) {
        return std::nullopt;
      }
      values.push_back(std::move(*value));
    }
    return values;
  }
  // Increments a counter and returns the new value.
  virtual uint64_t increment(const std::string& key) = 0;

  // Returns whether a call may take longer than a look into memory.
  virtual bool blocks() const {
    return true;
  }
  // Opens a second connection to the store, for use while a thread holds up the
  // first connection; null if impossible.
  virtual std::shared_ptr<Rendezvous> another() {
    return nullptr;
  }
};

} // namespace dlslime
