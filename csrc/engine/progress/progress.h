#pragma once

#include <atomic>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/threads/mutex.h"
#include "engine/progress/epoll_waiter.h"
#include "engine/progress/yield_backoff.h"
#include "interface/operation.h"

namespace dlslime {

// The work driven by Progress. Any thread may call.
class ProgressSource {
 public:
  virtual ~ProgressSource() = default;
  // Looks once at everything; true if anything happened. Returns at once while
  // a different thread is looking. `awaited`, if not null, is the operation
  // awaited by the calling thread, so that the thread may make copies for the
  // operation.
  virtual bool step(const Operation* awaited) = 0;
  // Starts a large copy, for a thread next to a thread looking at everything
  // else; true if a copy was started.
  virtual bool help() {
    return false;
  }
  // True if something will happen sooner than a sleeping thread could wake.
  virtual bool endsSoon() {
    return false;
  }
  // True while work goes on without a descriptor to tell of the end, so that a
  // thread has to look.
  virtual bool mustLook() {
    return false;
  }
  // Time of the next look at work without a descriptor; never() if no such look
  // is due.
  virtual TimePoint lookAgain() {
    return never();
  }
  // Makes peers ring from now on, then looks once more. False: the look found
  // something, and the thread must not sleep.
  virtual bool beginSleep() = 0;
  virtual void endSleep() = 0;
  virtual void onReady(const std::vector<uint64_t>& tokens) = 0;
};

// Decides which thread drives the engine, and when (docs/architecture.md,
// "Progress"):
//  - A thread in wait() polls. After Config::spin without news, and if nothing
//  ends soon, the thread sleeps on the
//    descriptors as the sleeper, and handles all news on waking.
//  - Further waiting threads are followers: each sleeps until its operation is
//  done or the sleeper leaves.
//  - While the source must be looked at, no thread sleeps long, and the
//  background thread polls like a waiting thread
//    unless a thread is waiting.
//  - The background thread looks once per `tick` while other threads look
//  because they wait or post, and starts large
//    copies for them. When no thread has looked for a tick, the background
//    thread takes over, asleep on the descriptors.
class Progress {
 public:
  // Limit of the awake wait for a transfer of which the peer is copying the
  // last pieces: the peer's process may have been stopped.
  static constexpr milliseconds kMostSpin{1};
  Progress(
      ProgressSource& source,
      EpollWaiter& epoll,
      microseconds spin,
      microseconds mostSpin = kMostSpin,
      microseconds tick = milliseconds(1));
  ~Progress();
  void start();
  void stop(); // idempotent; joins the thread

  // Returns true once `operation` is done, false at the deadline.
  bool wait(const Operation& operation, Deadline deadline);
  // Wakes the sleeping thread, if any: the caller has given the engine work of
  // which no descriptor tells.
  void wake() {
    if (asleep_.load(std::memory_order_acquire)) {
      epoll_.kick();
    }
  }
  // Looks once for news, for a thread polling an operation without ever
  // waiting; true if there was news. Yields the core from time to time, as a
  // waiting thread does.
  bool look(const Operation* awaited = nullptr);
  // Makes the background thread look from now on: news is expected, and no
  // other thread looks.
  void attend();
  // Notes a look for news by the calling thread. The background thread need not
  // look while threads keep noting looks.
  void noteLook() {
    activity_.store(
        activity_.load(std::memory_order_relaxed) + 1,
        std::memory_order_relaxed);
  }
  // Lets waiting threads see finished operations. Any thread.
  void notifyDone();

 private:
  bool spinWait(const Operation& operation, Deadline& deadline);
  void sleepWait(const Operation& operation, TimePoint deadline);
  bool takeSleeper();
  void releaseSleeper();
  void sleepOnce(TimePoint deadline);
  void background();
  // Keeps the background thread waiting until the sleeper has left, or, without
  // a sleeper, for a tick at most.
  void awaitTurn(MutexLock& lock) REQUIRES(mutex_);
  void serve();
  void hearOfDeaths(int looks);

  ProgressSource& source_;
  EpollWaiter& epoll_;
  const microseconds spin_;
  const microseconds mostSpin_; // for operations about to end
  const microseconds tick_;
  const Pacing pacing_ = Pacing::ofMachine();
  YieldBackoff pace_{pacing_, spin_};
  std::thread thread_;
  std::atomic<bool> stopping_{false};
  class Waiting; // counts a thread among waiters_
  std::atomic<int> waiters_{0};
  std::atomic<uint64_t> activity_{
      0}; // counts looks outside the background thread; updates may be lost
  std::atomic<bool> serving_{false}; // the background thread has taken over
  std::atomic<bool> asleep_{false}; // a thread sleeps or is about to
  std::atomic<bool> waiterAsleep_{
      false}; // a thread waiting for an operation sleeps or is about to

  Mutex mutex_;
  Condition changed_;
  std::atomic<int> followers_{0};
  bool sleeperTaken_ GUARDED_BY(mutex_) = false;
  // The background thread must look.
  bool attend_ GUARDED_BY(mutex_) = false;
};

} // namespace dlslime
