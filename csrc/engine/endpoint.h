#pragma once

#include <memory>
#include <mutex>

#include "engine/bootstrap/map_rendezvous.h"
#include "engine/engine.h"

namespace dlslime {

// One end of a pair of processes that are in no process group: they exchange
// their addresses by any means, and from then on are ranks 0 and 1 of a group
// of two, with all that groups can do. Any thread.
class Endpoint {
 public:
  struct Options {
    std::string name; // for texts
    milliseconds timeout{300'000}; // for reaching the peer
    RoutePolicy route = RoutePolicy::kAuto;
    FallbackPolicy fallback = FallbackPolicy::kWarn;
    std::shared_ptr<void> carrierSource{}; // see interface/carrier.h
  };
  Endpoint(std::shared_ptr<Engine> engine, const Options& options);
  ~Endpoint() {
    leave();
  }
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  // What the peer's connect() takes; the same during the endpoint's life.
  const Bytes& address() const {
    return address_;
  }
  // Both ends may call it in any order; nothing is sent before the first
  // operation. Throws Error{kInvalidArgument}: not an address, one's own, or
  // another one than before.
  void connect(ByteSpan peer);

  // Leaves the pair: the peer's operations with it fail. Idempotent.
  void leave();

  // Only once connected.
  const std::shared_ptr<Group>& group() const {
    return groups_[rank_];
  }
  int peer() const {
    return 1 - rank_;
  }
  const std::shared_ptr<Engine>& engine() const {
    return engine_;
  }

 private:
  const std::shared_ptr<Engine> engine_;
  // Which of the two this end is shows when it knows the other: until then it
  // is in a group as either.
  std::shared_ptr<MapRendezvous> exchanges_[2];
  std::shared_ptr<Group> groups_[2];
  Bytes id_;
  Bytes address_;

  std::mutex mutex_;
  Bytes peerAddress_; // guarded by mutex_; empty: not connected
  int rank_ = 0; // set once, before that
  bool left_ = false; // guarded by mutex_
};

// What Endpoint::connect() takes: who it is, and how it is reached as rank 0
// and as rank 1. The end with the lower id is rank 0.
constexpr size_t kEndpointIdBytes = 16;
Bytes endpointAddress(ByteSpan id, ByteSpan first, ByteSpan second);

// Of one end of a pair.
GroupOptions groupOptions(
    const Endpoint::Options& options,
    int rank,
    std::shared_ptr<Rendezvous> exchange);

} // namespace dlslime
