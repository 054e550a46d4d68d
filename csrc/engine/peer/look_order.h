#pragma once

#include <cstddef>
#include <vector>

#include "engine/progress/engine_mutex.h"

namespace dlslime {

class PeerChannel;

// Order in which looks poll the channels of a process. A look of a thread that
// waits polls each busy channel and a few quiet channels in turn, so that the
// cost does not grow with the number of idle peers. A channel is busy while the
// channel has work, or has had news in one of the last looks. Under the
// engine's lock.
class LookOrder {
 public:
  void add(PeerChannel& channel) REQUIRES(kEngineLock);
  void remove(const PeerChannel& channel) REQUIRES(kEngineLock);

  // Polls every channel; true if any had news.
  bool lookAtAll(int most) REQUIRES(kEngineLock);
  // Polls the busy channels and `awaited` (null: none); true if any had news.
  bool lookFor(PeerChannel* awaited, int most) REQUIRES(kEngineLock);
  // Polls the next few quiet channels; true if any had news.
  bool lookInTurn(int most) REQUIRES(kEngineLock);

  // Calls `wanted` for the busy channels until the result is true, and returns
  // that channel; null if there is none. Only busy channels have copies or
  // transfers under way.
  template <typename Wanted>
  PeerChannel* firstBusy(const Wanted& wanted) const REQUIRES(kEngineLock) {
    for (const auto& entry : busy_) {
      if (wanted(*entry.channel)) {
        return entry.channel;
      }
    }
    return nullptr;
  }
  size_t busy() const REQUIRES(kEngineLock) {
    return busy_.size();
  }

 private:
  struct Busy {
    PeerChannel* channel = nullptr;
    int vain = 0; // looks since the last news
  };
  bool lookAtBusy(PeerChannel* awaited, int most, bool& seen)
      REQUIRES(kEngineLock);
  bool lookAtQuiet(size_t index, int most) REQUIRES(kEngineLock);

  std::vector<Busy> busy_;
  std::vector<PeerChannel*> quiet_;
  size_t turn_ = 0; // index in quiet_ of the next channel to be polled
};

} // namespace dlslime
