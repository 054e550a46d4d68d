#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/record/flight_recorder.h"

namespace dlslime {

// Names a group in flight records, also after its end: `globalRanks` are the
// ranks of the default group, or empty for 0, 1, ... Any thread.
void nameFlightGroup(
    uint64_t key,
    const std::string& name,
    int rank,
    const std::vector<uint64_t>& globalRanks);
// Returns this process's global rank in the first group named.
std::optional<uint64_t> firstGlobalRank();

// Returns the records as a pickle in the form of torch's flight recorder.
// `forAnalyser` leaves out what torch's analyser (torchfrtrace) can't compare:
// operations that have ended, since it matches all entries by number, and
// receives from any source, whose pair is not known.
std::string pickledFlightLog(const FlightLog& log, bool forAnalyser);

} // namespace dlslime
