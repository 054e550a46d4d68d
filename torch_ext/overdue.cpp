#include "torch_ext/overdue.h"

#include <algorithm>
#include <string>
#include <system_error>
#include <thread>

#include "core/log.h"

namespace dlslime {

namespace {
// The lock is held for microseconds, or, by a machine that is slow, for some
// milliseconds.
constexpr milliseconds kPatience{1000};
constexpr milliseconds kLook{5000}; // for calls that do not return
constexpr milliseconds kNap{1};

constexpr const char* kRemedy =
    "a launch into a full queue, or of a kernel that is loaded for the first "
    "time, waits for them and keeps other calls from being made. "
    "DLSLIME_STREAM_WAITS=off lets the host wait instead (docs/cuda.md)";

Status letGoBefore(const Operation& operation, milliseconds limit) {
  return {
      ErrorCode::kTimeout,
      operation.describe() + " timed out after " +
          std::to_string(limit.count()) +
          " ms, and the GPU's driver took no calls until the stream that "
          "waited for it was let go: what was computed from it is wrong. "
          "Perhaps " +
          kRemedy};
}
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
    const Entry entry = entries_.top();
    const auto now = Clock::now();
    const bool early = now < entry.deadline && !entry.over();
    if (!early) {
      entries_.pop();
    } else if (
        changed_.wait_until(lock, std::min(entry.deadline, now + kLook)) ==
        std::cv_status::no_timeout) {
      continue;
    }
    lock.unlock();
    early ? warn(entry) : end(entry);
    lock.lock();
  }
}

void Overdue::warn(const Entry& entry) {
  const auto handle = entry.handle.lock();
  if (!handle || warned_ || handle->engine->responds(kPatience)) {
    return;
  }
  warned_ = true;
  logWarning(
      std::string("a call to the GPU's driver does not return while streams "
                  "wait for messages, perhaps because of one of them: ") +
      kRemedy);
}

// Whatever is called here may not return before the stream is let go, and
// perhaps others: so it is called by a thread of its own.
void Overdue::end(const Entry& entry) {
  const auto handle = entry.handle.lock();
  const auto operation = entry.operation.lock();
  const auto hold = entry.hold.lock();
  if (!handle || !operation || !hold || operation->done()) {
    return;
  }
  const auto limit = entry.limit;
  const auto take = [handle, operation, limit] {
    takeBack(*handle, operation, limit);
  };
  try {
    std::thread(take).detach();
  } catch (const std::system_error&) { // no more threads are to be had
    take();
  }
  for (auto waited = milliseconds(0); !operation->done(); waited += kNap) {
    if (waited > kPatience + kGrace) {
      const auto why = letGoBefore(*operation, limit);
      logError(why.message());
      operation->failLate(why);
      hold->release();
      return;
    }
    std::this_thread::sleep_for(kNap);
  }
}

} // namespace dlslime
