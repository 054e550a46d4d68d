#pragma once

#include <string>
#include <vector>

#include "base/config.h"
#include "interface/peer_report.h"
#include "transports/transports.h"

namespace dlslime {

// Returns all routes, best first; a route unusable for the pair has a reason
// instead of a transport.
std::vector<RouteOption> chooseRoutes(
    const Transports& transports,
    RoutePolicy policy,
    const PeerIdentity& self,
    const PeerIdentity& peer);

// Returns whether the messages go by a carrier of the group or endpoint.
bool needsCarrier(const Transport& transport);
// Returns whether the ends of a connection need a side socket.
bool needsSideSocket(const Transport& transport);
// Returns whether the route is the last resort, and was not asked for by the
// policy.
bool isFallback(const Transport& transport, RoutePolicy policy);
// Throws Error{kUnavailable} where the policy forbids the fallback.
void requireFallbackAllowed(
    FallbackPolicy policy,
    const std::vector<RejectedRoute>& rejected);
// Tells the user that the fallback is taken, and why.
void tellFallback(
    FallbackPolicy policy,
    const std::string& peer,
    const std::vector<RejectedRoute>& rejected);

// Returns a text like "shm: on another host (b2); rdma: ...".
std::string describeRejected(const std::vector<RejectedRoute>& rejected);

} // namespace dlslime
