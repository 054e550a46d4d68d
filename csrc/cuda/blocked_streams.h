#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>

#include "base/clock.h"

namespace dlslime::cuda {

// Streams that wait for us now. A call that waits for all streams must not meet
// one of them: the driver may keep others' calls from being made meanwhile, by
// which it would be let go. Any thread, but none that holds the engine's lock
// for what may wait.
class BlockedStreams {
 public:
  // Makes one wait by `hold`; what that throws, this does. Waits while
  // whenNone() does something.
  void add(const std::function<void()>& hold);
  void drop() {
    --count_;
  }
  // Calls it while none waits, and none begins to. False: one does. A program
  // may have one wait at any time, the next before the last is let go: after a
  // second of that it is kept from it for a moment.
  bool whenNone(const std::function<void()>& body);

 private:
  bool getQuiet(std::unique_lock<std::mutex>& lock);

  std::atomic<size_t> count_{0}; // goes up under mutex_ alone
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_:
  bool paused_ = false; // none begins to
  TimePoint busySince_ = never(); // whenNone() has found one each time
};

} // namespace dlslime::cuda
