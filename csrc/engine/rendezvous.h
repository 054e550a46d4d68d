#pragma once

#include <memory>
#include <optional>
#include <string>

#include "core/memory.h"

namespace dlslime {

// Where the ranks of a group find each other: a c10d store, or a map in tests.
// Any thread. May block for a network round trip, never for a peer. Throws
// Error{kUnavailable} if the store can't be reached.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;
  virtual void set(const std::string& key, const Bytes& value) = 0;
  // On the wire-up thread only.
  virtual std::optional<Bytes> tryGet(const std::string& key) = 0;
  // No tryGet() for a while: connections that it opened may go.
  virtual void rest() {}
  // Adds one to a counter and returns its new value.
  virtual uint64_t increment(const std::string& key) = 0;
};

} // namespace dlslime
