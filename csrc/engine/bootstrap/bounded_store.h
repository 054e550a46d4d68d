#pragma once

#include <memory>
#include <string>

#include "base/clock.h"
#include "interface/rendezvous.h"

namespace dlslime {

// The calls by which a rank makes itself known in a store, for a thread of the
// program. A store is foreign, and may never answer: torch's FileStore spins
// for ever on a record that a full disk has cut off. Each call is made on a
// thread of its own, and left behind with it at the deadline. Throws Error:
// kTimeout then, or what the store has thrown.
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
