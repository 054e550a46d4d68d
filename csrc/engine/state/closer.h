#pragma once

#include <vector>

#include "base/clock.h"
#include "engine/peer/channel_table.h"

namespace dlslime {

struct EngineState;

// Closes connections that are over. Bytes handed to a connection still go out,
// for up to kPatience: a peer that reads nothing delays only the end of its own
// pair. Called by a single thread at a time, without the engine's lock.
class Closer {
 public:
  static constexpr milliseconds kPatience{1000};

  explicit Closer(EngineState& state) : state_(state) {}
  // Takes over the retired connections (EngineState::retireFailed) and goes on
  // closing.
  void advance();
  // Time to call advance() again; never() while no connection is being closed.
  TimePoint next() const;
  // Waits until all retired connections are closed.
  void finish();
  // Waits until the connections of all channels, already failed, are closed:
  // for the engine's end.
  void finishAll();

 private:
  struct Closing {
    ChannelTable::Retired retired;
    TimePoint begun;
    bool atEnd; // closed by finishAll(): copies still under way keep their
                // memory for ever
  };
  void look();
  bool isOver(Closing& closing);

  EngineState& state_;
  std::vector<Closing> closing_;
};

} // namespace dlslime
