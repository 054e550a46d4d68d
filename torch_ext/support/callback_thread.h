#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>

#include "base/clock.h"

namespace dlslime {

// Runs what users have hung on futures: it may block, or end the group, which
// the engine's threads must not, nor Gloo's, nor those that wait for something
// else. Its threads live from their first use on.
class CallbackThread {
 public:
  // For those of messages: one after the other.
  static CallbackThread& instance();
  // For those of collectives, which may wait for each other's futures: several
  // at a time.
  static CallbackThread& concurrent();

  // Returns the callback's ticket.
  uint64_t post(std::function<void()> callback);
  // Returns true once the callback with this ticket has begun; false if those
  // before it have been running for a while, or there is no thread to be had.
  bool awaitTurn(uint64_t ticket);
  // Returns when nothing is left to run, or when `most` has passed.
  void drain(milliseconds most);

 private:
  explicit CallbackThread(int mostThreads) : mostThreads_(mostThreads) {}
  void run();
  void startThread();

  const int mostThreads_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_:
  std::deque<std::function<void()>> waiting_;
  int threads_ = 0;
  int running_ = 0; // callbacks,
  TimePoint since_; // of which the last one began then
  uint64_t posted_ = 0; // tickets given,
  uint64_t begun_ = 0; // and the last that has begun
  bool shortageSaid_ = false;
};

} // namespace dlslime
