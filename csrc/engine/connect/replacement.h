#pragma once

#include "engine/bootstrap/wire_records.h"
#include "engine/state/engine_state.h"

namespace dlslime {

// What a peer's request for a connection finds in the channel table.
struct Replacement {
  enum class Step {
    kConnect, // a connection is to be made
    kRefuse, // by `refusal`
    kReadOn, // the old connection has messages left: look again
  };
  Step step = Step::kConnect;
  Welcome refusal{};
};

// Decides by the channel table on the request `hello` of the peer `key`. Of a
// connection to be replaced, reads as many messages as have come: messages
// received over the old connection count, so that connection is read to the
// end. Wire-up thread only.
Replacement decideReplacement(
    EngineState& state,
    const ChannelKey& key,
    const Hello& hello);

} // namespace dlslime
