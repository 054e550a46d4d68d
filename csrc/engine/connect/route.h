#pragma once

#include <string>
#include <vector>

#include "base/config.h"
#include "engine/peer/peer_channel.h"
#include "transports/transports.h"

namespace dlslime {

// The routes of a pair, best first.
std::vector<RouteOption> chooseRoutes(
    const Transports& transports,
    RoutePolicy policy,
    const PeerIdentity& self,
    const PeerIdentity& peer);

// Its messages are carried by what the group or endpoint brings.
bool needsCarrier(const Transport& transport);
// Its ends open a second socket.
bool needsSideSocket(const Transport& transport);
// Taking this route under this policy is the last resort, and was not asked
// for.
bool isFallback(const Transport& transport, RoutePolicy policy);
// Throws Error{kUnavailable} where it is forbidden.
void requireFallbackAllowed(
    FallbackPolicy policy,
    const std::vector<RejectedRoute>& rejected);
// Tells the user that it is taken, and why.
void tellFallback(
    FallbackPolicy policy,
    const std::string& peer,
    const std::vector<RejectedRoute>& rejected);

// "shm: on another host (b2); rdma: ..."
std::string describeRejected(const std::vector<RejectedRoute>& rejected);

} // namespace dlslime
