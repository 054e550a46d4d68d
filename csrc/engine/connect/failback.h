#pragma once

#include <map>
#include <string>

#include "base/clock.h"
#include "engine/connect/handshakes.h"
#include "engine/state/engine_state.h"

namespace dlslime {

// Brings connections back to the route and the NICs that were unavailable
// before: probes from time to time, and lets Failover replace a connection only
// after a probe has worked. Wire-up thread only.
class Failback {
 public:
  Failback(EngineState& state, Handshakes& handshakes)
      : state_(state), handshakes_(handshakes) {}

  void advance();
  // Returns when to call advance() again.
  TimePoint next() const;
  // Makes advance() probe for every replaceable connection at once, because a
  // device has come back.
  void onDeviceUp() {
    searches_.clear();
    lookAtAll_ = true;
  }

 private:
  struct Search {
    TimePoint next; // time of the next probe
    milliseconds pause{}; // after the next probe; grows
  };
  void take();
  void probe(const ChannelTable::Member& member);

  EngineState& state_;
  Handshakes& handshakes_;
  std::map<ChannelKey, Search> searches_;
  bool lookAtAll_ = false;
};

} // namespace dlslime
