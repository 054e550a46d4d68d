#pragma once

#include <cstdint>
#include <vector>

#include "transports/rdma/end_address.h"
#include "transports/rdma/rail/rail.h"

namespace dlslime::rdma {

// A rail to be made: the number chosen by the initiator, and the NIC.
struct RailPlan {
  uint8_t number;
  NicPtr nic;
};

// Returns the initiator's rails: `queuePairs` on each NIC.
std::vector<RailPlan> planRails(std::vector<NicPtr> nics, int queuePairs);

// Gives each of the peer's NICs a NIC of ours, nearest pairs first: NICs in the
// same network, as far as GIDs tell. The rest of the longer list is left out,
// because it would only share the NICs of the shorter list. Throws
// Error{kUnavailable} if no NIC fits.
std::vector<RailPlan> matchRails(
    const EndAddress& peer,
    const std::vector<NicPtr>& nics);

} // namespace dlslime::rdma
