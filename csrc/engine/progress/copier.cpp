#include "engine/progress/copier.h"

#include <algorithm>
#include <atomic>
#include <list>
#include <thread>
#include <utility>

#include "base/leak_on_purpose.h"
#include "base/log.h"
#include "base/threads/mutex.h"
#include "engine/progress/engine_thread.h"

namespace dlslime {

namespace {
constexpr size_t kMostThreads =
    256; // bounds the number of pairs that may be stuck

struct Worker {
  std::thread thread;
  std::optional<ClaimedCopy> given; // handed over and not begun
  bool copying = false; // a peer may keep the copy from returning
  bool finishing = false; // Finish is running
  TimePoint since{}; // start of the copy being made
  bool busy() const {
    return given || copying || finishing;
  }
};

bool isStuck(const Worker& worker, TimePoint now) {
  return worker.copying && now - worker.since > Copier::kPatience;
}
} // namespace

struct Copier::Shared : std::enable_shared_from_this<Shared> {
  explicit Shared(Finish tellEngine) : finish(std::move(tellEngine)) {}

  void run(Worker& worker);
  // Returns false when no thread can be started.
  bool addWorker() REQUIRES(mutex);
  // True while a copy is waiting for a thread or being made.
  bool copying() const REQUIRES(mutex);
  // True while a copy is waiting for a thread or being reported.
  bool needsEngine() const REQUIRES(mutex);

  const Finish finish;
  std::atomic<int> busy{0}; // number of busy workers
  mutable Mutex mutex;
  Condition changed;
  std::list<Worker> workers GUARDED_BY(mutex);
  bool stopping GUARDED_BY(mutex) = false;
  // Set at the end of stop(): the engine may be gone.
  bool closed GUARDED_BY(mutex) = false;
};

void Copier::Shared::run(Worker& worker) {
  MutexLock lock(mutex);
  for (;;) {
    while (!worker.given && !stopping) {
      changed.wait(lock);
    }
    if (!worker.given) {
      return;
    }
    while (worker.given) {
      ClaimedCopy copy = *std::exchange(worker.given, std::nullopt);
      worker.copying = true;
      worker.since = Clock::now();
      lock.unlock();
      copy.job.error = copy.job.run(copy.job);
      lock.lock();
      worker.copying = false;
      if (closed) {
        // Destroying the copy would touch the engine, already gone.
        leakOnPurpose(std::make_shared<ClaimedCopy>(std::move(copy)));
        break;
      }
      worker.finishing = true;
      const bool more = !stopping;
      lock.unlock();
      auto next = finish(copy, more);
      lock.lock();
      worker.finishing = false;
      worker.given = std::move(next);
    }
    busy.fetch_sub(1, std::memory_order_relaxed);
    if (closed) {
      return;
    }
    changed.notifyAll();
  }
}

// The new thread waits for the mutex, hence until its Worker is in the list.
bool Copier::Shared::addWorker() {
  try {
    std::list<Worker> one(1);
    auto& worker = one.front();
    worker.thread = startEngineThread(
        [shared = shared_from_this(), &worker] { shared->run(worker); });
    workers.splice(workers.end(), one);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

bool Copier::Shared::copying() const {
  return std::any_of(workers.begin(), workers.end(), [](const Worker& worker) {
    return worker.given || worker.copying;
  });
}

bool Copier::Shared::needsEngine() const {
  return std::any_of(workers.begin(), workers.end(), [](const Worker& worker) {
    return worker.given || worker.finishing;
  });
}

Copier::Copier(Finish finish)
    : shared_(std::make_shared<Shared>(std::move(finish))) {}

Copier::~Copier() {
  stop(milliseconds(0));
}

bool Copier::busy() const {
  return shared_->busy.load(std::memory_order_relaxed) != 0;
}

bool Copier::free() const {
  const auto& shared = *shared_;
  const MutexLock lock(shared.mutex);
  const auto now = Clock::now();
  return !shared.stopping &&
      (std::any_of(
           shared.workers.begin(),
           shared.workers.end(),
           [](const Worker& worker) { return !worker.busy(); }) ||
       (shared.workers.size() < kMostThreads &&
        std::all_of(
            shared.workers.begin(),
            shared.workers.end(),
            [&](const Worker& worker) { return isStuck(worker, now); })));
}

bool Copier::give(ClaimedCopy& copy) {
  auto& shared = *shared_;
  const MutexLock lock(shared.mutex);
  auto worker = std::find_if(
      shared.workers.begin(), shared.workers.end(), [](const Worker& one) {
        return !one.busy();
      });
  if (worker == shared.workers.end()) {
    if (!shared.addWorker()) {
      return false;
    }
    worker = std::prev(shared.workers.end());
  }
  worker->given = std::move(copy);
  shared.busy.fetch_add(1, std::memory_order_relaxed);
  shared.changed.notifyAll();
  return true;
}

TimePoint Copier::lookAgain() const {
  return busy() ? deadlineAfter(kPatience) : never();
}

size_t Copier::stuck() const {
  const MutexLock lock(shared_->mutex);
  const auto now = Clock::now();
  return static_cast<size_t>(std::count_if(
      shared_->workers.begin(),
      shared_->workers.end(),
      [&](const Worker& worker) { return isStuck(worker, now); }));
}

void Copier::stop(milliseconds patience) {
  auto& shared = *shared_;
  MutexLock lock(shared.mutex);
  shared.stopping = true;
  shared.changed.notifyAll();
  const auto deadline = deadlineAfter(patience);
  while (shared.copying() && shared.changed.waitUntil(lock, deadline)) {
  }
  while (shared.needsEngine()) {
    shared.changed.wait(lock);
  }
  shared.closed = true;
  std::list<Worker> ended;
  for (auto next = shared.workers.begin(); next != shared.workers.end();) {
    const auto worker = next++;
    if (!worker->thread.joinable()) { // left behind by an earlier call
      continue;
    }
    if (worker->copying) {
      worker->thread.detach();
    } else {
      ended.splice(ended.end(), shared.workers, worker);
    }
  }
  lock.unlock();
  for (auto& worker : ended) {
    worker.thread.join();
  }
}

} // namespace dlslime
