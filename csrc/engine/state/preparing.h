#pragma once

#include "engine/peer/unprepared.h"

namespace dlslime {

struct EngineState;

// Registers the memory of posted operations by `unprepared.registrar`. Called
// without the engine's lock, because registering takes long; an operation may
// end meanwhile, and its memory then stays until the registration is done. A
// thread posting to a connected pair prepares the operation itself
// (Engine::prepare). The wire-up thread prepares operations posted before the
// pair was connected, or before a replacement of the connection, and only then
// is the connection used (docs/architecture.md, "Memory and its owner").
void prepareAll(EngineState& state, const Unprepared& unprepared);

} // namespace dlslime
