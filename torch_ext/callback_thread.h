#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>

#include "core/clock.h"

namespace dlslime {

// Runs what users have hung on futures, one after the other: it may block, or
// end the group, which the engine's threads must not, nor those that wait for
// something else. One for the process, with a thread of its own from its first
// use on.
class CallbackThread {
 public:
  static CallbackThread& instance();

  // Returns the callback's ticket.
  uint64_t post(std::function<void()> callback);
  // Returns true once the callback with this ticket has begun; false if one
  // before it has been running for a while.
  bool awaitTurn(uint64_t ticket);
  // Returns when nothing is left to run, or when `most` has passed.
  void drain(milliseconds most);

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_; // guarded by mutex_
  bool started_ = false; // guarded by mutex_
  bool running_ = false; // guarded by mutex_: a callback,
  TimePoint since_; // guarded by mutex_: that began then
  uint64_t posted_ = 0; // guarded by mutex_: tickets given,
  uint64_t begun_ = 0; // guarded by mutex_: and the last that has begun
};

} // namespace dlslime
