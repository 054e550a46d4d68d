#pragma once

#include <map>
#include <string>

#include "base/clock.h"
#include "engine/connect/handshakes.h"
#include "engine/state/engine_state.h"

namespace dlslime {

// Looks for other connections for the channels that have lost theirs, until
// DLSLIME_RECOVERY_MS are over. On the wire-up thread only.
class Failover {
 public:
  Failover(EngineState& state, Handshakes& handshakes)
      : state_(state), handshakes_(handshakes) {}

  void advance();
  // When to call advance() again.
  TimePoint next() const;
  // A device has come back: all that wait for it try at once.
  void onDeviceUp();

 private:
  struct Search {
    uint32_t generation = 0; // of the connection that was lost
    TimePoint deadline;
    TimePoint patience; // until when nothing slower is taken
    TimePoint next; // when to try again
    milliseconds pause{}; // between tries; grows
    std::string problem; // what the last try found
  };
  void drain();
  void noteFound(const std::map<ChannelKey, Search>& searches);
  milliseconds waitFor(const ChannelKey& key, TimePoint now) const;
  void look(const ChannelTable::Member& lost, Search& search);
  bool hopeless(const ChannelTable::Member& lost, Search& search) const;
  void giveUp(const ChannelTable::Member& lost, const Search& search);

  EngineState& state_;
  Handshakes& handshakes_;
  std::map<ChannelKey, Search> searches_;
  // Those that have found a connection of late: how long the next one is to
  // wait, should that be lost at once.
  struct Found {
    TimePoint when;
    milliseconds pause{};
  };
  std::map<ChannelKey, Found> found_;
  bool draining_ = false;
};

} // namespace dlslime
