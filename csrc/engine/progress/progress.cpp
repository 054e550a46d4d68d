#include "engine/progress/progress.h"

#include <sched.h>

#include <algorithm>
#include <utility>

#include "base/at_end.h"
#include "base/relax.h"
#include "engine/progress/engine_thread.h"
#include "engine/progress/pacing.h"

namespace dlslime {

namespace {

// Pause between looks while the source must be looked at and has had no news
// for a while: no descriptor tells of a GPU's progress.
constexpr microseconds kNap{50};
// Looks between two checks of the clock or the descriptors while every look
// finds news.
constexpr int kLooksPerClock = 256;

// Sets a flag so that either a thread completing work sees the flag, or the
// caller's next look sees the work. The fence is needed because the look only
// acquires, and an acquire load may overtake even a seq_cst store on processors
// with LDAPR (aarch64).
void announce(std::atomic<bool>& flag) {
  flag.store(true, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

} // namespace

Progress::Progress(
    ProgressSource& source,
    EpollWaiter& epoll,
    microseconds spin,
    microseconds mostSpin,
    microseconds tick)
    : source_(source),
      epoll_(epoll),
      spin_(spin),
      mostSpin_(std::max(spin, mostSpin)),
      tick_(tick) {}

Progress::~Progress() {
  stop();
}

void Progress::start() {
  thread_ = startEngineThread([this] { background(); });
}

void Progress::stop() {
  {
    const MutexLock lock(mutex_);
    stopping_.store(true);
  }
  changed_.notifyAll();
  epoll_.kick();
  if (thread_.joinable()) {
    thread_.join();
  }
}

class Progress::Waiting {
 public:
  explicit Waiting(Progress& progress) : waiters_(progress.waiters_) {
    waiters_.fetch_add(1, std::memory_order_seq_cst);
    if (progress.serving_.load(std::memory_order_acquire)) {
      progress.epoll_.kick(); // the waiting thread polls from now on
    }
  }
  ~Waiting() {
    waiters_.fetch_sub(1, std::memory_order_relaxed);
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  std::atomic<int>& waiters_;
};

bool Progress::wait(const Operation& operation, Deadline deadline) {
  if (operation.done()) {
    return true;
  }
  const Waiting waiting(*this);
  while (!spinWait(operation, deadline)) {
    const auto now = Clock::now();
    if (now >= deadline.at(now)) {
      return operation.done();
    }
    sleepWait(operation, deadline.at(now));
  }
  return true;
}

bool Progress::spinWait(const Operation& operation, Deadline& deadline) {
  int idlePolls = 0;
  int yields = 0; // since the last news
  int looksWithNews = 0;
  TimePoint end{}, last{}, lookedAt{};
  int64_t displaced = -1;
  while (!operation.done()) {
    noteLook();
    if (source_.step(&operation)) {
      idlePolls = 0;
      displaced = -1;
      yields = 0;
      // The clock is checked despite the news, because a peer may send news
      // without end.
      if (++looksWithNews % kLooksPerClock == 0) {
        const auto now = Clock::now();
        if (now >= deadline.at(now)) {
          return operation.done();
        }
      }
      continue;
    }
    if (++idlePolls < (yields > 0 ? pace_.between() : pace_.before())) {
      relaxProcessor();
      continue;
    }
    idlePolls = 0;
    if (++yields % 2 ==
        0) { // checks neither the clock nor the use of the yield
      sched_yield();
      continue;
    }
    const auto now = Clock::now();
    if (yields == 1 && pace_.crowded(now)) {
      return operation.done();
    }
    pace_.noteTime(yields > 1 ? now - lookedAt : nanoseconds(0), now);
    lookedAt = now;
    if (yields == 1) {
      const auto most = deadline.at(now);
      end = std::min(now + spin_, most);
      last = std::min(now + mostSpin_, most);
    }
    if (now >= end) {
      if (spin_.count() == 0 || now >= last || !source_.endsSoon()) {
        return operation.done();
      }
      end = std::min(now + spin_, last);
    }
    pace_.yield(displaced);
  }
  return true;
}

bool Progress::look(const Operation* awaited) {
  thread_local int vainLooks = 0;
  thread_local int64_t displaced = -1;
  noteLook();
  if (source_.step(awaited)) {
    vainLooks = 0;
    displaced = -1;
    return true;
  }
  if (++vainLooks >= pace_.before()) {
    vainLooks = 0;
    pace_.yield(displaced);
  }
  return false;
}

bool Progress::takeSleeper() {
  const MutexLock lock(mutex_);
  if (sleeperTaken_) {
    return false;
  }
  sleeperTaken_ = true;
  return true;
}

void Progress::releaseSleeper() {
  {
    const MutexLock lock(mutex_);
    sleeperTaken_ = false;
  }
  changed_.notifyAll();
}

void Progress::attend() {
  // Pairs with announce(): either the caller sees asleep_, or the sleeping
  // thread's last look sees the caller's work.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  wake();
  {
    const MutexLock lock(mutex_);
    attend_ = true;
  }
  changed_.notifyAll();
}

void Progress::sleepOnce(TimePoint deadline) {
  announce(asleep_);
  if (source_.mustLook()) {
    asleep_.store(false, std::memory_order_release);
    std::this_thread::sleep_for(kNap);
    source_.onReady(epoll_.wait(Clock::now()));
    return;
  }
  const std::vector<uint64_t>* ready = nullptr;
  {
    const AtEnd awake([this] {
      asleep_.store(false, std::memory_order_release);
      source_.endSleep();
    });
    if (source_.beginSleep()) {
      ready = &epoll_.wait(std::min(deadline, source_.lookAgain()));
    }
  }
  if (ready != nullptr) {
    source_.onReady(*ready);
  }
}

void Progress::sleepWait(const Operation& operation, TimePoint deadline) {
  if (takeSleeper()) {
    const AtEnd release([this] {
      waiterAsleep_.store(false, std::memory_order_relaxed);
      releaseSleeper();
    });
    // Set before the last look at done(), so that a thread completing the
    // operation later kicks.
    announce(waiterAsleep_);
    if (!operation.done()) {
      sleepOnce(deadline);
    }
    return;
  }
  MutexLock lock(mutex_);
  followers_.fetch_add(1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  while (!operation.done() && sleeperTaken_) {
    if (deadline >= never()) {
      changed_.wait(lock);
    } else if (!changed_.waitUntil(lock, deadline)) {
      break;
    }
  }
  followers_.fetch_sub(1, std::memory_order_relaxed);
}

void Progress::notifyDone() {
  // Pairs with sleepWait(): before the last look at done(), a waiting thread
  // counts itself as a follower or sets waiterAsleep_.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (waiterAsleep_.load(std::memory_order_relaxed)) {
    epoll_.kick();
  }
  if (followers_.load(std::memory_order_relaxed) > 0) {
    {
      const MutexLock lock(mutex_);
    }
    changed_.notifyAll();
  }
}

void Progress::awaitTurn(MutexLock& lock) {
  if (sleeperTaken_) { // by a waiting thread, which handles all news
    while (sleeperTaken_ && !stopping_.load()) {
      changed_.wait(lock);
    }
  } else {
    const auto end = Clock::now() + tick_;
    while (!stopping_.load() && !attend_ && changed_.waitUntil(lock, end)) {
    }
  }
}

void Progress::background() {
  uint64_t seen = 0;
  MutexLock lock(mutex_);
  while (!stopping_.load()) {
    awaitTurn(lock);
    if (stopping_.load() || sleeperTaken_) {
      continue;
    }
    const bool attend = std::exchange(attend_, false);
    const auto now = activity_.load(std::memory_order_relaxed);
    const bool polled = now != seen && !attend;
    seen = now;
    sleeperTaken_ = true;
    lock.unlock();
    surviveWantOfMemory("progress", [&] {
      if (polled && !source_.mustLook()) {
        source_.step(nullptr);
        int helped = 0;
        while (source_.help() && !stopping_.load()) {
          hearOfDeaths(++helped);
        }
        hearOfDeaths(0);
      } else {
        serve();
      }
    });
    serving_.store(false, std::memory_order_release);
    lock.lock();
    sleeperTaken_ = false;
    changed_.notifyAll();
  }
}

// Handles ready descriptors at every kLooksPerClock-th look, so that a peer's
// death is noticed even among news without end.
void Progress::hearOfDeaths(int looks) {
  if (looks % kLooksPerClock == 0) {
    source_.onReady(epoll_.wait(Clock::now()));
  }
}

void Progress::serve() {
  const auto seen = activity_.load(std::memory_order_relaxed);
  const auto alone = [&] {
    return waiters_.load() == 0 && !stopping_.load() &&
        (activity_.load(std::memory_order_relaxed) == seen ||
         source_.mustLook());
  };
  serving_.store(true, std::memory_order_seq_cst);
  bool news =
      true; // since the last sleep; without news a single look is enough
  int looksWithNews = 0;
  while (alone()) {
    const auto end =
        Clock::now() + (news ? pacing_.servingSpin : microseconds(0));
    news = !source_.mustLook();
    do {
      while (source_.step(nullptr) && alone()) {
        news = true;
        hearOfDeaths(++looksWithNews);
      }
      sched_yield();
    } while (alone() && Clock::now() < end);
    if (alone()) {
      sleepOnce(never());
    }
  }
  serving_.store(false, std::memory_order_release);
}

} // namespace dlslime
