#include "torch_ext/support/stream_watchdog.h"

#include <algorithm>
#include <string>
#include <system_error>
#include <thread>

#include "base/log.h"

namespace dlslime {

namespace {
// The engine's lock is held for microseconds, or on a slow machine for some
// milliseconds.
constexpr milliseconds kResponsePatience{1000};
constexpr milliseconds kLook{5000}; // between looks for stuck calls
constexpr milliseconds kNap{1};

constexpr const char* kRemedy =
    "a launch into a full queue, or the first launch of a kernel, waits for "
    "the waiting streams, and keeps further calls from being made. "
    "DLSLIME_STREAM_WAITS=off lets the host wait instead (docs/cuda.md)";

Status letGoBefore(const Operation& operation, milliseconds limit) {
  return {
      ErrorCode::kTimeout,
      operation.describe() + " timed out after " +
          std::to_string(limit.count()) +
          " ms, and the GPU's driver took no calls until the stream that "
          "waited for the operation was let go: results computed from its data "
          "are wrong. "
          "In general, " +
          kRemedy};
}
} // namespace

StreamWatchdog& StreamWatchdog::instance() {
  static auto* const all = new StreamWatchdog; // never destroyed
  return *all;
}

bool StreamWatchdog::Entry::over() const {
  const auto alive = operation.lock();
  return !alive || alive->done();
}

bool StreamWatchdog::watch(
    const std::shared_ptr<GroupHandle>& handle,
    const OperationPtr& operation,
    const std::shared_ptr<Accelerator::StreamBlock>& hold,
    milliseconds limit) {
  const MutexLock guard(mutex_);
  if (!start()) {
    return false;
  }
  while (!entries_.empty() && entries_.top().over()) {
    entries_.pop();
  }
  const auto deadline = deadlineAfter(limit);
  if (entries_.empty() || deadline < entries_.top().deadline) {
    changed_.notifyOne();
  }
  entries_.push({deadline, limit, handle, operation, hold});
  return true;
}

bool StreamWatchdog::start() {
  if (started_) {
    return true;
  }
  try {
    std::thread([this] { run(); }).detach();
  } catch (const std::system_error& error) {
    logWarning(
        std::string("no thread can be started to let streams go at a "
                    "time-out, so the host waits instead of the stream: ") +
        error.what());
    return false;
  }
  return started_ = true;
}

void StreamWatchdog::run() {
  MutexLock lock(mutex_);
  for (;;) {
    if (entries_.empty()) {
      changed_.wait(lock);
      continue;
    }
    const Entry entry = entries_.top();
    const auto now = Clock::now();
    if (now >= entry.deadline || entry.over()) {
      entries_.pop();
      lock.unlock();
      end(entry);
      lock.lock();
    } else if (
        !changed_.waitUntil(lock, std::min(entry.deadline, now + kLook)) &&
        Clock::now() < entry.deadline) {
      lock.unlock();
      warn(entry);
      lock.lock();
    }
  }
}

void StreamWatchdog::warn(const Entry& entry) {
  const auto handle = entry.handle.lock();
  if (!handle || warned_ || handle->engine->responds(kResponsePatience)) {
    return;
  }
  warned_ = true;
  logWarning(
      std::string("a call to the GPU's driver does not return while streams "
                  "wait for messages. In general, ") +
      kRemedy);
}

// Takes an operation back. If the driver is stuck, all late streams are let go
// as well, without more patience: the operations have failed already, and the
// streams may be the cause.
void StreamWatchdog::end(const Entry& entry) {
  const auto first = lateOf(entry);
  if (!first) {
    return;
  }
  takeBackApart({*first});
  for (auto waited = milliseconds(0); !first->operation->done();
       waited += kNap) {
    if (waited > kResponsePatience + kGrace) {
      letGo(*first);
      const auto others = takeLate();
      for (const auto& late : others) {
        letGo(late);
      }
      takeBackApart(others);
      return;
    }
    std::this_thread::sleep_for(kNap);
  }
}

std::optional<StreamWatchdog::Late> StreamWatchdog::lateOf(const Entry& entry) {
  Late late{
      entry.limit,
      entry.handle.lock(),
      entry.operation.lock(),
      entry.hold.lock()};
  if (!late.handle || !late.operation || !late.hold || late.operation->done()) {
    return std::nullopt;
  }
  return late;
}

std::vector<StreamWatchdog::Late> StreamWatchdog::takeLate() {
  std::vector<Late> all;
  const MutexLock guard(mutex_);
  for (const auto now = Clock::now();
       !entries_.empty() && entries_.top().deadline <= now;
       entries_.pop()) {
    if (auto late = lateOf(entries_.top())) {
      all.push_back(std::move(*late));
    }
  }
  return all;
}

void StreamWatchdog::letGo(const Late& late) {
  const auto why = letGoBefore(*late.operation, late.limit);
  logError(why.message());
  late.operation->failLate(why);
  late.hold->release();
}

// Takes operations back on a separate thread, because the calls may not return
// before these streams, and perhaps more, are let go.
void StreamWatchdog::takeBackApart(const std::vector<Late>& all) {
  if (all.empty()) {
    return;
  }
  const auto take = [all] {
    for (const auto& late : all) {
      takeBack(*late.handle, late.operation, late.limit);
    }
  };
  try {
    std::thread(take).detach();
  } catch (const std::system_error&) { // no thread can be started
    if (all.front().handle->engine->responds(kResponsePatience)) {
      take();
    }
  }
}

} // namespace dlslime
