#pragma once

#include <map>
#include <string>

#include "base/clock.h"
#include "engine/connect/handshakes.h"
#include "engine/state/engine_state.h"

namespace dlslime {

// Brings connections back to the route, and the NICs, that they could not have
// when they were made: tries from time to time what would work, and only then
// lets Failover replace them. On the wire-up thread only.
class Failback {
 public:
  Failback(EngineState& state, Handshakes& handshakes)
      : state_(state), handshakes_(handshakes) {}

  void advance();
  // When to call advance() again.
  TimePoint next() const;
  // A device has come back: this is the time to look, at every connection.
  void onDeviceUp() {
    searches_.clear();
    lookAtAll_ = true;
  }

 private:
  struct Search {
    TimePoint next; // when to try again
    milliseconds pause{}; // until then; grows
  };
  void take();
  void probe(const ChannelTable::Member& member);

  EngineState& state_;
  Handshakes& handshakes_;
  std::map<ChannelKey, Search> searches_;
  bool lookAtAll_ = false;
};

} // namespace dlslime
