#include "transports/rdma/rail_plan.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

namespace dlslime::rdma {

std::vector<RailPlan> planRails(std::vector<NicPtr> nics, int queuePairs) {
  nics.resize(std::min(nics.size(), RemoteBuffer::kMostKeys));
  std::vector<RailPlan> plans;
  for (int i = 0; i < queuePairs; ++i) {
    for (const auto& nic : nics) {
      if (plans.size() < EndAddress::kMostRails) {
        plans.push_back({static_cast<uint8_t>(plans.size()), nic});
      }
    }
  }
  return plans;
}

namespace {

struct Match {
  int near; // bits of the network that both NICs share
  size_t order; // breaks ties: the first match wins
  uint8_t peerNic;
  NicPtr nic;
};

// Returns all pairs of NICs that can reach each other, nearest first.
std::vector<Match> possibleMatches(
    const EndAddress& peer,
    const std::vector<NicPtr>& nics) {
  std::vector<Match> matches;
  for (const auto& rail : peer.rails) {
    for (const auto& nic : nics) {
      if (nic->ethernet() == rail.pair.ethernet) {
        const auto& gid = nic->gid().value;
        matches.push_back(
            {commonNetworkBits(gid, rail.pair.gid),
             matches.size(),
             rail.nicNumber,
             nic});
      }
    }
  }
  std::sort(
      matches.begin(), matches.end(), [](const auto& one, const auto& other) {
        return std::pair(-one.near, one.order) <
            std::pair(-other.near, other.order);
      });
  return matches;
}

} // namespace

std::vector<RailPlan> matchRails(
    const EndAddress& peer,
    const std::vector<NicPtr>& nics) {
  std::map<uint8_t, NicPtr> chosen;
  std::set<NicPtr> taken;
  for (const auto& match : possibleMatches(peer, nics)) {
    if (!chosen.contains(match.peerNic) && !taken.contains(match.nic)) {
      chosen[match.peerNic] = match.nic;
      taken.insert(match.nic);
    }
  }
  std::vector<RailPlan> plans;
  for (const auto& rail : peer.rails) {
    if (chosen.contains(rail.nicNumber)) {
      plans.push_back({rail.number, chosen[rail.nicNumber]});
    }
  }
  if (plans.empty()) {
    throw Error(
        ErrorCode::kUnavailable,
        "the peer's NICs are " +
            std::string(
                peer.rails[0].pair.ethernet ? "Ethernet" : "InfiniBand") +
            ", and no NIC of this process is");
  }
  return plans;
}

} // namespace dlslime::rdma
