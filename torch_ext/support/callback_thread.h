#pragma once

#include <cstdint>
#include <deque>
#include <functional>

#include "base/clock.h"
#include "base/threads/mutex.h"

namespace dlslime {

// Runs the callbacks that users attach to futures. A callback may block, or end
// the group, and so must not run on threads of the engine or of Gloo, or on a
// thread that waits for something else. Threads live from the first use on.
class CallbackThread {
 public:
  // For futures of messages: runs callbacks one after the other.
  static CallbackThread& instance();
  // For futures of collectives: runs several callbacks at a time, because a
  // callback may wait for a later future.
  static CallbackThread& concurrent();

  // Queues the callback, and returns a ticket.
  uint64_t post(std::function<void()> callback);
  // Returns true once the callback with the ticket has begun. Returns false if
  // earlier callbacks run long, or if no thread can be started.
  bool awaitTurn(uint64_t ticket);
  // Returns when no callback is waiting or running, or when `most` has passed.
  void drain(milliseconds most);

 private:
  explicit CallbackThread(int mostThreads) : mostThreads_(mostThreads) {}
  void run();
  void startThread() REQUIRES(mutex_);

  const int mostThreads_;
  Mutex mutex_;
  Condition changed_;
  std::deque<std::function<void()>> waiting_ GUARDED_BY(mutex_);
  int threads_ GUARDED_BY(mutex_) = 0;
  int running_ GUARDED_BY(mutex_) = 0; // callbacks running now
  TimePoint since_ GUARDED_BY(mutex_); // when the last callback began
  uint64_t posted_ GUARDED_BY(mutex_) = 0; // last ticket given
  uint64_t begun_ GUARDED_BY(mutex_) = 0; // last ticket begun
  bool shortageSaid_ GUARDED_BY(mutex_) = false;
};

} // namespace dlslime
