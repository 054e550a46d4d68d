#pragma once

#include "base/clock.h"
#include "engine/progress/copier.h"
#include "engine/progress/engine_mutex.h"
#include "interface/connection.h"

namespace dlslime {

// Copies of a channel that threads have claimed and not finished: they touch
// memory, and use the connection. Under the engine's lock.
class LentCopies {
 public:
  // Claims a copy of the connection, if there is one.
  bool claim(Connection& connection, CopyJob& job) REQUIRES(kEngineLock) {
    auto* const copying = connection.copying();
    const bool claimed = copying != nullptr && copying->claimCopy(job);
    copies_ += claimed ? 1 : 0;
    return claimed;
  }
  // Notes that a copy is finished. True: none is left.
  bool noteFinished() REQUIRES(kEngineLock) {
    return --copies_ == 0;
  }
  bool any() const REQUIRES(kEngineLock) {
    return copies_ > 0;
  }
  // noteGiven() and noteBack() count the copies in the hands of the Copier.
  void noteGiven() REQUIRES(kEngineLock) {
    if (given_++ == 0) {
      givenAt_ = Clock::now();
    }
  }
  void noteBack() REQUIRES(kEngineLock) {
    --given_;
  }
  // True if the Copier has been busy with the channel for so long that no more
  // threads should be lent to the peer.
  bool overdue() const REQUIRES(kEngineLock) {
    return given_ > 0 && Clock::now() - givenAt_ > Copier::kPatience;
  }

 private:
  int copies_ = 0;
  int given_ = 0;
  TimePoint givenAt_{}; // when given_ was last raised from 0
};

} // namespace dlslime
