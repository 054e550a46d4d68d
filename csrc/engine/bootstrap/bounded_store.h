#pragma once

#include <memory>
#include <string>

#include "base/clock.h"
#include "interface/rendezvous.h"

namespace dlslime {

// Calls by which a rank publishes itself in a store, for a thread of the
// program. A foreign store may never answer: torch's FileStore spins for ever
// on a record cut off by a full disk. So each call to a store that may block
// runs on a new thread, abandoned at the deadline. Throws Error{kTimeout} at
// the deadline, else the store's own error.
class BoundedStore {
 public:
  BoundedStore(std::shared_ptr<Rendezvous> store, TimePoint deadline)
      : store_(std::move(store)), deadline_(deadline) {}

  uint64_t increment(const std::string& key) const;
  void set(const std::string& key, const Bytes& value) const;

 private:
  const std::shared_ptr<Rendezvous> store_;
  const TimePoint deadline_;
};

} // namespace dlslime
