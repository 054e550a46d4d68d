#pragma once

#include <string>
#include <vector>

#include "engine/peer/group.h"
#include "interface/peer_report.h"

// What the engine tells users about a group.

namespace dlslime {

PeerReport reportPeer(Group& group, int rank) REQUIRES(kEngineLock);
// Returns a report of each rank that has been looked for.
std::vector<PeerReport> reportPeers(Group& group) REQUIRES(kEngineLock);
// The functions below are explained at the engine's functions of these names.
std::string describeLink(Group& group, const Operation& operation)
    REQUIRES(kEngineLock);
std::string describePending(Group& group, size_t most) REQUIRES(kEngineLock);
std::string describeFailures(Group& group) REQUIRES(kEngineLock);

} // namespace dlslime
