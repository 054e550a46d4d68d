#pragma once

#include <string>
#include <vector>

#include "interface/counters.h"
#include "interface/transport.h"

namespace dlslime {

// Route that comes before the chosen route, and why the route was not taken.
struct RejectedRoute {
  std::string route, reason;
  bool tried = false; // by this process; might work at a later time
};

// A route known to the engine, for users: its devices on this machine, or why
// the route can't be used.
struct RouteReport {
  std::string route, text;
};

// Traffic and route to a rank, for users.
struct PeerReport {
  int rank = 0;
  std::string route, copy;
  std::string devices; // "mlx5_0:1, mlx5_1:1"
  std::vector<NicTraffic> nics; // of the present connection
  // Connections replaced so far, after a loss or by a better connection.
  uint32_t replaced = 0;
  std::vector<RejectedRoute> rejected;
  PeerIdentity peer;
  Counters counters;
  size_t pendingSends = 0, pendingReceives = 0;
};

} // namespace dlslime
