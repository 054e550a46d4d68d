#pragma once

#include <string>
#include <vector>

#include "engine/peer/group.h"
#include "engine/peer/rejected_route.h"

// What the engine tells users about a group. Under the engine's lock.

namespace dlslime {

// Traffic and route to a rank, for users.
struct PeerReport {
  int rank = 0;
  std::string route, copy;
  std::string devices; // "mlx5_0:1, mlx5_1:1"
  // Connections replaced so far, after a loss or by a better connection.
  uint32_t replaced = 0;
  std::vector<RejectedRoute> rejected;
  PeerIdentity peer;
  Counters counters;
  size_t pendingSends = 0, pendingReceives = 0;
};

PeerReport reportPeer(Group& group, int rank);
// Returns a report of each rank that has been looked for.
std::vector<PeerReport> reportPeers(Group& group);
// The functions below are explained at the engine's functions of these names.
std::string describeLink(Group& group, const Operation& operation);
std::string describePending(Group& group, size_t most);
std::string describeFailures(Group& group);

} // namespace dlslime
