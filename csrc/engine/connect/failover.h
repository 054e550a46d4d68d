#pragma once

#include <map>
#include <string>

#include "base/clock.h"
#include "engine/connect/handshakes.h"
#include "engine/state/engine_state.h"

namespace dlslime {

// Looks for new connections for severed channels: for DLSLIME_RECOVERY_MS, and
// for at least 10 s when the old connection was given up while working. Wire-up
// thread only.
class Failover {
 public:
  Failover(EngineState& state, Handshakes& handshakes)
      : state_(state), handshakes_(handshakes) {}

  void advance();
  // Returns when to call advance() again.
  TimePoint next() const;
  // Makes all searches try at once, because a device has come back.
  void onDeviceUp();

 private:
  struct Search {
    uint32_t generation = 0; // of the lost connection
    TimePoint deadline;
    TimePoint patience; // end of the time without fallback to TCP
    TimePoint next; // time of the next try
    milliseconds pause{}; // between tries; grows
    std::string problem; // why the last try failed
  };
  void drain();
  Search searchFor(const ChannelTable::Member& lost, TimePoint now);
  void noteFound(const std::map<ChannelKey, Search>& searches);
  milliseconds waitFor(const ChannelKey& key, TimePoint now) const;
  void look(const ChannelTable::Member& lost, Search& search);
  bool hopeless(const ChannelTable::Member& lost, Search& search) const;
  void giveUp(const ChannelTable::Member& lost, const Search& search);

  EngineState& state_;
  Handshakes& handshakes_;
  std::map<ChannelKey, Search> searches_;
  // Recently successful search: `pause` is the wait before the next search,
  // should the new connection be lost at once.
  struct Found {
    TimePoint when;
    milliseconds pause{};
  };
  std::map<ChannelKey, Found> found_;
  bool draining_ = false;
};

} // namespace dlslime
