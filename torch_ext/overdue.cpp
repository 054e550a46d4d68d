#include "torch_ext/overdue.h"

#include <thread>

#include "core/log.h"

namespace dlslime {

namespace {
// The lock is held for microseconds, or, by a machine that is slow, for some
// milliseconds.
constexpr milliseconds kPatience{1000};
} // namespace

Overdue& Overdue::instance() {
  static auto* const all = new Overdue; // its thread runs until the end
  return *all;
}

bool Overdue::Entry::over() const {
  const auto alive = operation.lock();
  return !alive || alive->done();
}

void Overdue::watch(
    const std::shared_ptr<GroupHandle>& handle,
    const OperationPtr& operation,
    const std::shared_ptr<Accelerator::Hold>& hold,
    milliseconds limit) {
  const std::lock_guard<std::mutex> guard(mutex_);
  while (!entries_.empty() && entries_.top().over()) {
    entries_.pop();
  }
  const auto deadline = deadlineAfter(limit);
  const bool first = entries_.empty() || deadline < entries_.top().deadline;
  entries_.push({deadline, limit, handle, operation, hold});
  if (!started_) {
    started_ = true;
    std::thread([this] { run(); }).detach();
  } else if (first) {
    changed_.notify_one();
  }
}

void Overdue::run() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    if (entries_.empty()) {
      changed_.wait(lock);
      continue;
    }
    const auto next = entries_.top().deadline;
    if (Clock::now() < next && !entries_.top().over()) {
      changed_.wait_until(lock, next);
      continue;
    }
    const Entry entry = entries_.top();
    entries_.pop();
    lock.unlock();
    end(entry);
    lock.lock();
  }
}

void Overdue::end(const Entry& entry) {
  const auto handle = entry.handle.lock();
  const auto operation = entry.operation.lock();
  const auto hold = entry.hold.lock();
  if (!handle || !operation || !hold || operation->done()) {
    return;
  }
  if (handle->engine->responds(kPatience)) {
    takeBack(*handle, operation, entry.limit);
    return;
  }
  const Status why(
      ErrorCode::kTimeout,
      operation->describe() + " timed out after " +
          std::to_string(entry.limit.count()) +
          " ms: the stream that waited for it has kept the GPU's driver from "
          "taking our calls (a full launch queue, or a kernel that is loaded). "
          "It was let go, and what was computed from this message is wrong. "
          "DLSLIME_STREAM_WAITS=off lets the host wait instead");
  logError(why.message());
  hold->release();
  handle->engine->abandon(*handle->group, operation, why);
  handle->engine->failLetGo(*operation, why);
}

} // namespace dlslime
