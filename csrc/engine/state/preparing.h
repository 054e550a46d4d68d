#pragma once

#include "engine/peer/unprepared.h"

namespace dlslime {

struct EngineState;

// Registering memory takes its time, so nobody does it under the engine's lock:
// an operation is prepared by the registrar of the connection that it will go
// by before it can go there. Whoever posts it does that, if he can: for what
// was posted before the pair was connected, or before another connection took
// the first one's place, the wire-up thread does, and only then is the
// connection used (docs/architecture.md, "Memory and its owner").

// Prepares them, not under it. They may end meanwhile: then their memory stays
// until this is done with it.
void prepareAll(EngineState& state, const Unprepared& unprepared);

} // namespace dlslime
