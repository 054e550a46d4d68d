#pragma once

#include <vector>

#include "base/clock.h"
#include "engine/peer/channel_table.h"

namespace dlslime {

struct EngineState;

// Ends connections that are over. What was handed to one still goes out, for up
// to kPatience: a peer may read nothing, and then delays the end of its own
// pair alone. One thread at a time, without the engine's lock.
class Closer {
 public:
  static constexpr milliseconds kPatience{1000};

  explicit Closer(EngineState& state) : state_(state) {}
  // Goes on with those that were retired (EngineState::retireFailed).
  void advance();
  // When to call that again; never() while none is being closed.
  TimePoint next() const;
  // Waits until those are closed that were retired.
  void finish();
  // At the engine's end: the same of all channels, which have failed.
  void finishAll();

 private:
  struct Closing {
    ChannelTable::Retired retired;
    TimePoint begun;
    bool atEnd; // copies that have not come back keep their memory for ever
  };
  void look();
  bool isOver(Closing& closing);

  EngineState& state_;
  std::vector<Closing> closing_;
};

} // namespace dlslime
