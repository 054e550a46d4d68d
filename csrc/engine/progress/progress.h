#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "engine/progress/epoll_waiter.h"
#include "engine/progress/yield_backoff.h"
#include "interface/operation.h"

namespace dlslime {

// What Progress drives. Any thread.
class ProgressSource {
 public:
  virtual ~ProgressSource() = default;
  // One look at everything; returns at once if another thread is looking.
  // True if anything happened. Of a thread that waits for an operation: copies
  // that serve it may be made by this thread.
  virtual bool step(const Operation* awaited) = 0;
  // The same, but of large copies only: for a thread beside one that looks at
  // all the rest.
  virtual bool help() {
    return false;
  }
  // Something will happen sooner than a sleeper wakes.
  virtual bool endsSoon() {
    return false;
  }
  // Something goes on of which no descriptor will tell: somebody has to look.
  virtual bool mustLook() {
    return false;
  }
  // When something is to be looked at again that no descriptor tells of.
  virtual TimePoint lookAgain() {
    return never();
  }
  // Peers must ring from now on. Looks once more; false if that found
  // something, then there is no sleeping.
  virtual bool beginSleep() = 0;
  virtual void endSleep() = 0;
  virtual void onReady(const std::vector<uint64_t>& tokens) = 0;
};

// Who drives the engine, when (docs/architecture.md, "Progress"):
//  - a thread in wait() polls; after Config::spin without news, and nothing
//    that ends soon, it sleeps on the descriptors, and serves everybody when it
//    wakes;
//  - further waiting threads sleep until their operation is done or the
//    sleeping one leaves;
//  - where the source must be looked at, nobody sleeps long, and the background
//    thread polls like one that waits unless one does;
//  - the background thread looks every `tick` while others look,
//    because they wait or post, and has their large copies shared; it takes
//    over, asleep on the descriptors, when nobody has looked for one.
class Progress {
 public:
  // A transfer whose last pieces the peer copies is waited for awake, but for
  // no longer than kMostSpin: its process may have been stopped.
  static constexpr milliseconds kMostSpin{1};
  Progress(
      ProgressSource& source,
      EpollWaiter& epoll,
      microseconds spin,
      microseconds mostSpin = kMostSpin,
      microseconds tick = milliseconds(1));
  ~Progress();
  void start();
  void stop(); // idempotent; joins

  // True once `operation` is done; false at the deadline.
  bool wait(const Operation& operation, Deadline deadline);
  // The caller has given the engine work that no descriptor tells of.
  void wake() {
    if (asleep_.load(std::memory_order_acquire)) {
      epoll_.kick();
    }
  }
  // One look for news, for a thread that asks again and again for one operation
  // and never waits: it leaves its core to others as one that waits does. True:
  // there was some.
  bool look(const Operation* awaited = nullptr);
  // Somebody is to be told of what comes, and does not look: the background
  // thread has to, from now on.
  void attend();
  // The caller has looked for news by itself, and will again: the background
  // thread need not.
  void noteLook() {
    activity_.store(
        activity_.load(std::memory_order_relaxed) + 1,
        std::memory_order_relaxed);
  }
  // Some operations are done: lets their waiters see. Any thread.
  void notifyDone();

 private:
  bool spinWait(const Operation& operation, Deadline& deadline);
  void sleepWait(const Operation& operation, TimePoint deadline);
  bool takeSleeper();
  void releaseSleeper();
  void sleepOnce(TimePoint deadline);
  void background();
  void serve();
  void hearOfDeaths(int looks);

  ProgressSource& source_;
  EpollWaiter& epoll_;
  const microseconds spin_;
  const microseconds mostSpin_; // for what ends soon
  const microseconds tick_;
  const microseconds servingSpin_;
  YieldBackoff pace_;
  std::thread thread_;
  std::atomic<bool> stopping_{false};
  class Waiting; // counts a thread among waiters_
  std::atomic<int> waiters_{0};
  std::atomic<uint64_t> activity_{0}; // looks by other threads; lossy
  std::atomic<bool> serving_{false}; // the background thread has taken over
  std::atomic<bool> asleep_{false}; // some thread is, or is about to be, asleep
  std::atomic<bool> waiterAsleep_{false}; // and it waits for an operation

  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<int> followers_{0};
  bool sleeperTaken_ = false; // guarded by mutex_
  bool attend_ = false; // guarded by mutex_: the background thread should
};

} // namespace dlslime
