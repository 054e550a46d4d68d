#pragma once

#include <atomic>
#include <functional>

#include "base/clock.h"
#include "base/threads/mutex.h"

namespace dlslime::cuda {

// Streams waiting for the engine. A driver call that waits for all streams must
// not run while a stream is blocked: the driver may hold up all calls
// meanwhile, even the calls that would release the stream. Any thread, but
// add() and whenNone() may wait, so not under the engine lock.
class BlockedStreams {
 public:
  // Blocks a stream by calling `hold`, and passes exceptions on. Waits while
  // whenNone() runs or pauses new blocks.
  void add(const std::function<void()>& hold);
  void drop() {
    --count_;
  }
  // Calls `body` while no stream is blocked or can become blocked; returns
  // false if a stream stays blocked. A pipeline may have a stream blocked at
  // any time, so after a second without a gap new blocks have to pause for a
  // moment.
  bool whenNone(const std::function<void()>& body);

 private:
  bool getQuiet(MutexLock& lock) REQUIRES(mutex_);

  std::atomic<size_t> count_{0}; // raised under mutex_ only
  Mutex mutex_;
  Condition changed_;
  bool paused_ GUARDED_BY(mutex_) = false; // add() waits
  // Start of an unbroken row of failures of whenNone().
  TimePoint busySince_ GUARDED_BY(mutex_) = never();
};

} // namespace dlslime::cuda
