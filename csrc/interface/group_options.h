#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/config.h"
#include "interface/rendezvous.h"

namespace dlslime {

class AcceptQueue;
namespace gloo {
class CarrierSource;
}

struct GroupOptions {
  std::string name; // for messages to users
  int rank = 0;
  int size = 1;
  milliseconds timeout{30 * 60 * 1000}; // for finding and connecting a peer
  RoutePolicy route = RoutePolicy::kAuto;
  FallbackPolicy fallback = FallbackPolicy::kWarn;
  std::shared_ptr<Rendezvous> rendezvous;
  // Address records are never renewed, as with endpoints: a peer that is not in
  // the group, or does not answer, never will be.
  bool oneLife = false;
  // Queue of a hub, set in the hub's own group: each process joining the group
  // gets a separate group, which is put into the queue.
  std::shared_ptr<AcceptQueue> acceptQueue;
  // The acceptQueue of the hub, set in the groups of guests.
  std::shared_ptr<AcceptQueue> hub;
  std::shared_ptr<gloo::CarrierSource> carrierSource; // see interface/carrier.h
  int64_t joined = 0; // as in the address record; set by Engine::join()
};

} // namespace dlslime
