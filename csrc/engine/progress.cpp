#include "engine/progress.h"

#include <sched.h>

#include <algorithm>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace dlslime {

namespace {

// Polls before the first sched_yield(): about a microsecond. On a core of
// their own yields return at once; where ranks share a core they are what
// lets the peer run.
constexpr int kPollsBeforeYield = 16;
// With one CPU for all threads nothing can come while we poll.
constexpr int kPollsOnOneCpu = 1;
// A transfer whose last pieces the peer copies is waited for awake, but no
// longer: its process may have been stopped.
constexpr milliseconds kMostSpin{1};
constexpr milliseconds kTick{1};
// How long the background thread goes on polling after it was woken.
constexpr microseconds kServeSpin{20};

int pollsBeforeYield() {
  cpu_set_t allowed;
  const bool one = sched_getaffinity(0, sizeof(allowed), &allowed) == 0 &&
      CPU_COUNT(&allowed) == 1;
  return one ? kPollsOnOneCpu : kPollsBeforeYield;
}

void relax() {
#if defined(__SSE2__)
  _mm_pause();
#endif
}

} // namespace

Progress::Progress(ProgressSource& source, Sleeper& sleeper, microseconds spin)
    : source_(source),
      sleeper_(sleeper),
      spin_(spin),
      pollsBeforeYield_(pollsBeforeYield()) {}

Progress::~Progress() {
  stop();
}

void Progress::start() {
  thread_ = std::thread([this] { background(); });
}

void Progress::stop() {
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    stopping_.store(true);
  }
  changed_.notify_all();
  sleeper_.kick();
  if (thread_.joinable()) {
    thread_.join();
  }
}

bool Progress::wait(const Operation& operation, TimePoint deadline) {
  if (operation.done()) {
    return true;
  }
  waiters_.fetch_add(1, std::memory_order_seq_cst);
  if (serving_.load(std::memory_order_acquire)) {
    sleeper_.kick(); // we poll from here on
  }
  while (!spinWait(operation, deadline) && Clock::now() < deadline) {
    sleepWait(operation, deadline);
  }
  waiters_.fetch_sub(1, std::memory_order_relaxed);
  return operation.done();
}

bool Progress::spinWait(const Operation& operation, TimePoint deadline) {
  int idlePolls = 0;
  TimePoint end{}, last{};
  while (!operation.done()) {
    noteLook();
    if (source_.step()) {
      idlePolls = 0;
      continue;
    }
    if (++idlePolls < pollsBeforeYield_) {
      relax();
      continue;
    }
    const auto now = Clock::now();
    if (idlePolls == pollsBeforeYield_) {
      end = std::min(now + spin_, deadline);
      last = std::min(now + kMostSpin, deadline);
    }
    if (now >= end) {
      if (spin_.count() == 0 || now >= last || !source_.endsSoon()) {
        return operation.done();
      }
      end = std::min(now + spin_, last);
    }
    sched_yield();
  }
  return true;
}

bool Progress::takeSleeper() {
  const std::lock_guard<std::mutex> guard(mutex_);
  if (sleeperTaken_) {
    return false;
  }
  sleeperTaken_ = true;
  return true;
}

void Progress::releaseSleeper() {
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    sleeperTaken_ = false;
  }
  changed_.notify_all();
}

void Progress::sleepOnce(TimePoint deadline) {
  asleep_.store(true, std::memory_order_seq_cst);
  const bool quiet = source_.beginSleep();
  if (quiet) {
    const auto& ready = sleeper_.wait(deadline);
    asleep_.store(false, std::memory_order_release);
    source_.endSleep();
    source_.onReady(ready);
    return;
  }
  asleep_.store(false, std::memory_order_release);
  source_.endSleep();
}

void Progress::sleepWait(const Operation& operation, TimePoint deadline) {
  if (takeSleeper()) {
    // Set before the last look at done(): whoever completes it later kicks.
    waiterAsleep_.store(true, std::memory_order_seq_cst);
    if (!operation.done()) {
      sleepOnce(deadline);
    }
    waiterAsleep_.store(false, std::memory_order_relaxed);
    releaseSleeper();
    return;
  }
  std::unique_lock<std::mutex> lock(mutex_);
  followers_.fetch_add(1, std::memory_order_seq_cst);
  const auto ready = [&] { return operation.done() || !sleeperTaken_; };
  if (deadline >= never()) {
    changed_.wait(lock, ready);
  } else {
    changed_.wait_until(lock, deadline, ready);
  }
  followers_.fetch_sub(1, std::memory_order_relaxed);
}

void Progress::notifyDone() {
  // Pairs with what a waiter does before its last look at done(): it counts
  // itself as a follower, or says that it sleeps.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (waiterAsleep_.load(std::memory_order_relaxed)) {
    sleeper_.kick();
  }
  if (followers_.load(std::memory_order_relaxed) > 0) {
    {
      const std::lock_guard<std::mutex> guard(mutex_);
    }
    changed_.notify_all();
  }
}

void Progress::background() {
  uint64_t seen = 0;
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stopping_.load()) {
    if (sleeperTaken_) { // by a waiter, who serves everybody
      changed_.wait(
          lock, [this] { return !sleeperTaken_ || stopping_.load(); });
    } else {
      changed_.wait_for(lock, kTick, [this] { return stopping_.load(); });
    }
    if (stopping_.load() || sleeperTaken_) {
      continue;
    }
    const auto now = activity_.load(std::memory_order_relaxed);
    const bool polled = now != seen;
    seen = now;
    sleeperTaken_ = true;
    lock.unlock();
    if (polled) {
      source_.step();
      source_.onReady(sleeper_.wait(Clock::now())); // sockets: peers that died
    } else {
      serve();
    }
    lock.lock();
    sleeperTaken_ = false;
    changed_.notify_all();
  }
}

void Progress::serve() {
  const auto seen = activity_.load(std::memory_order_relaxed);
  const auto alone = [&] {
    return waiters_.load() == 0 &&
        activity_.load(std::memory_order_relaxed) == seen;
  };
  serving_.store(true, std::memory_order_seq_cst);
  while (!stopping_.load() && alone()) {
    const auto end = Clock::now() + kServeSpin;
    do {
      while (source_.step() && alone()) {
      }
      sched_yield();
    } while (alone() && Clock::now() < end);
    if (alone() && !stopping_.load()) {
      sleepOnce(never());
    }
  }
  serving_.store(false, std::memory_order_release);
}

} // namespace dlslime
