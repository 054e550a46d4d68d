#pragma once

#include <memory>

#include "base/library/api.h"
#include "base/threads/mutex.h"
#include "engine/bootstrap/map_rendezvous.h"
#include "engine/engine.h"

namespace dlslime {

// End of a pair of processes outside of process groups. The two processes
// exchange addresses by any means and become ranks 0 and 1 of a group of two,
// with everything that groups can do. Any thread may call.
class DLSLIME_API Endpoint {
 public:
  struct Options {
    std::string name; // for texts
    milliseconds timeout{300'000}; // for reaching the peer
    RoutePolicy route = RoutePolicy::kAuto;
    FallbackPolicy fallback = FallbackPolicy::kWarn;
    std::shared_ptr<gloo::CarrierSource> carrierSource{};
  };
  Endpoint(std::shared_ptr<Engine> engine, const Options& options);
  ~Endpoint() {
    leave();
  }
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  // Argument for the peer's connect(); the same during the endpoint's life.
  const Bytes& address() const {
    return address_;
  }
  // Sets the peer. Both ends may call in any order; nothing is sent before the
  // first operation. Throws Error{kInvalidArgument} if `peer` is no address, is
  // the endpoint's own or differs from an earlier call's, and if the endpoint
  // is closed or a different endpoint has connected before.
  void connect(ByteSpan peer);

  // Leaves the pair: the peer's operations with it fail. Idempotent.
  void leave();

  // The group of the pair; valid only once connected.
  const std::shared_ptr<Group>& group() const {
    return groups_[rank_];
  }
  // The peer's rank; valid only once connected.
  int peer() const {
    return 1 - rank_;
  }
  const std::shared_ptr<Engine>& engine() const {
    return engine_;
  }

 private:
  const std::shared_ptr<Engine> engine_;
  // Indexed by rank: the endpoint's rank depends on the peer's id, so until
  // connect() the endpoint is in two groups, as either rank.
  std::shared_ptr<MapRendezvous> exchanges_[2];
  std::shared_ptr<Group> groups_[2];
  Bytes id_;
  Bytes address_;

  Mutex mutex_;
  Bytes peerAddress_ GUARDED_BY(mutex_); // empty: not connected
  int rank_ = 0; // set once, before peerAddress_
  bool left_ GUARDED_BY(mutex_) = false;
};

// Bytes of an endpoint's id; the end with the lower id is rank 0.
constexpr size_t kEndpointIdBytes = 16;
// Makes an address for Endpoint::connect() from an endpoint's id and its
// address records as rank 0 and as rank 1.
Bytes endpointAddress(ByteSpan id, ByteSpan first, ByteSpan second);

// Returns the options of the group of two, for the end with rank `rank`.
GroupOptions groupOptions(
    const Endpoint::Options& options,
    int rank,
    std::shared_ptr<Rendezvous> exchange);

} // namespace dlslime
