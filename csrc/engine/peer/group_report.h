#pragma once

#include <string>
#include <vector>

#include "engine/peer/group.h"
#include "interface/peer_report.h"

// What the engine tells users about a group. Under the engine's lock.

namespace dlslime {

PeerReport reportPeer(Group& group, int rank);
// Returns a report of each rank that has been looked for.
std::vector<PeerReport> reportPeers(Group& group);
// The functions below are explained at the engine's functions of these names.
std::string describeLink(Group& group, const Operation& operation);
std::string describePending(Group& group, size_t most);
std::string describeFailures(Group& group);

} // namespace dlslime
