#include "engine/progress/copier.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <list>
#include <mutex>
#include <thread>
#include <utility>

#include "base/leak_on_purpose.h"
#include "base/log.h"
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

struct Copier::Shared {
  explicit Shared(Finish tellEngine) : finish(std::move(tellEngine)) {}

  void run(Worker& worker);
  // Makes the given copy; `lock` is released meanwhile. True: Finish has
  // returned a further copy to make.
  bool makeOne(Worker& worker, std::unique_lock<std::mutex>& lock);

  const Finish finish;
  std::atomic<int> busy{0}; // number of busy workers
  mutable std::mutex mutex;
  std::condition_variable changed;
  // `mutex` guards the members below.
  std::list<Worker> workers;
  bool stopping = false;
  bool closed = false; // set at the end of stop(): the engine may be gone
};

void Copier::Shared::run(Worker& worker) {
  std::unique_lock<std::mutex> lock(mutex);
  for (;;) {
    changed.wait(lock, [&] { return worker.given || stopping; });
    if (!worker.given) {
      return;
    }
    while (makeOne(worker, lock)) {
    }
    busy.fetch_sub(1, std::memory_order_relaxed);
    if (closed) {
      return;
    }
    changed.notify_all();
  }
}

bool Copier::Shared::makeOne(
    Worker& worker,
    std::unique_lock<std::mutex>& lock) {
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
    return false;
  }
  worker.finishing = true;
  const bool more = !stopping;
  lock.unlock();
  auto next = finish(copy, more);
  lock.lock();
  worker.finishing = false;
  worker.given = std::move(next);
  return worker.given.has_value();
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
  const std::lock_guard<std::mutex> guard(shared_->mutex);
  const auto& workers = shared_->workers;
  const auto now = Clock::now();
  return !shared_->stopping &&
      (std::any_of(
           workers.begin(),
           workers.end(),
           [](const Worker& worker) { return !worker.busy(); }) ||
       (workers.size() < kMostThreads &&
        std::all_of(workers.begin(), workers.end(), [&](const Worker& worker) {
          return isStuck(worker, now);
        })));
}

// Starts a thread. Called under the mutex, so that the new thread waits until
// its Worker is in the list.
bool Copier::addWorker() {
  try {
    std::list<Worker> one(1);
    auto& worker = one.front();
    worker.thread =
        startEngineThread([shared = shared_, &worker] { shared->run(worker); });
    shared_->workers.splice(shared_->workers.end(), one);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

bool Copier::give(ClaimedCopy& copy) {
  auto& shared = *shared_;
  const std::lock_guard<std::mutex> guard(shared.mutex);
  auto worker = std::find_if(
      shared.workers.begin(), shared.workers.end(), [](const Worker& one) {
        return !one.busy();
      });
  if (worker == shared.workers.end()) {
    if (!addWorker()) {
      return false;
    }
    worker = std::prev(shared.workers.end());
  }
  worker->given = std::move(copy);
  shared.busy.fetch_add(1, std::memory_order_relaxed);
  shared.changed.notify_all();
  return true;
}

TimePoint Copier::lookAgain() const {
  return busy() ? deadlineAfter(kPatience) : never();
}

size_t Copier::stuck() const {
  const std::lock_guard<std::mutex> guard(shared_->mutex);
  const auto now = Clock::now();
  return static_cast<size_t>(std::count_if(
      shared_->workers.begin(),
      shared_->workers.end(),
      [&](const Worker& worker) { return isStuck(worker, now); }));
}

void Copier::stop(milliseconds patience) {
  auto& shared = *shared_;
  std::unique_lock<std::mutex> lock(shared.mutex);
  shared.stopping = true;
  shared.changed.notify_all();
  const auto copying = [&] {
    return std::any_of(
        shared.workers.begin(), shared.workers.end(), [](const Worker& worker) {
          return worker.given || worker.copying;
        });
  };
  shared.changed.wait_for(lock, patience, [&] { return !copying(); });
  shared.changed.wait(lock, [&] {
    return std::none_of(
        shared.workers.begin(), shared.workers.end(), [](const Worker& worker) {
          return worker.given || worker.finishing;
        });
  });
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
