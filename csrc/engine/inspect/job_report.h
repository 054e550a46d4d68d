#pragma once

#include <string>

#include "engine/state/engine_state.h"

namespace dlslime {

// Returns the process's groups, and the route and traffic to each of their
// ranks, as JSON. Takes the engine's lock.
std::string jobReport(EngineState& state);

} // namespace dlslime
