#include "torch_ext/overdue.h"

#include <thread>

namespace dlslime {

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
    milliseconds limit) {
  const std::lock_guard<std::mutex> guard(mutex_);
  while (!entries_.empty() && entries_.top().over()) {
    entries_.pop();
  }
  const auto deadline = deadlineAfter(limit);
  const bool first = entries_.empty() || deadline < entries_.top().deadline;
  entries_.push({deadline, limit, handle, operation});
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
    const auto handle = entry.handle.lock();
    const auto operation = entry.operation.lock();
    if (handle && operation && !operation->done()) {
      takeBack(*handle, operation, entry.limit);
    }
    lock.lock();
  }
}

} // namespace dlslime
