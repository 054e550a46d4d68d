#pragma once

#include "engine/state/engine_state.h"

// Memory held by the connections of a group. Any thread may call; the functions
// are explained at Engine.

namespace dlslime {

uint32_t peerPid(EngineState& state, Group& group, int rank);
MemoryUse memoryUse(EngineState& state, Group& group);
void trim(EngineState& state, Group& group);

} // namespace dlslime
