#include "torch_ext/support/waiting.h"

#include <pybind11/pybind11.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "base/log.h"
#include "torch_ext/support/flight_dump.h"
#include "torch_ext/support/python_end.h"
#include "torch_ext/support/stream_watchdog.h"

namespace dlslime {

namespace {

constexpr size_t kPendingShown = 16;

} // namespace

std::string NoteOperation::describe() const {
  constexpr uint32_t kImmediate = 1; // as in one_sided.py
  if (tag() < kFirstTag) {
    return Operation::describe();
  }
  const char* const what =
      tag() == kFirstTag + kImmediate ? "an immediate" : "a notification";
  return std::string(kind() == Kind::kSend ? "send of " : "recv of ") + what +
      (kind() == Kind::kSend ? " to " : " from ") + nameOf(peer());
}

bool onMainThread() {
  return syscall(SYS_gettid) == getpid();
}

void heedSignals() {
  if (onMainThread()) {
    const pybind11::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0) {
      throw pybind11::error_already_set();
    }
  }
}

std::function<void()> heedingSignals() {
  return [next = deadlineAfter(kSignalsEvery)]() mutable {
    if (Clock::now() >= next) {
      heedSignals();
      next = deadlineAfter(kSignalsEvery);
    }
  };
}

bool waitHeedingSignals(
    Engine& engine,
    const Operation& operation,
    milliseconds limit) {
  const StaysWhenPythonEnds guard;
  if (limit <= kSignalsEvery || engine.wait(operation, kSignalsEvery)) {
    return engine.wait(operation, limit);
  }
  const auto deadline = deadlineAfter(limit - kSignalsEvery);
  if (!onMainThread()) {
    return engine.wait(operation, deadline);
  }
  while (Clock::now() < deadline) {
    heedSignals();
    if (engine.wait(
            operation, std::min(deadline, deadlineAfter(kSignalsEvery)))) {
      return true;
    }
  }
  return operation.done();
}

void takeBack(
    GroupHandle& handle,
    const OperationPtr& operation,
    milliseconds limit) {
  auto& engine = *handle.engine;
  auto& group = *handle.group;
  dumpFlightLog(engine, "an operation has timed out");
  const Status why(
      ErrorCode::kTimeout,
      operation->describe() + " timed out after " +
          std::to_string(limit.count()) +
          " ms: " + engine.describeLink(group, *operation) +
          ". Pending in group \"" + handle.options().name +
          "\": " + engine.describePending(group, kPendingShown));
  engine.cancel(group, operation, why);
  if (!engine.wait(*operation, kGrace)) {
    engine.abandon(group, operation, why);
  }
  if (!operation->status().ok() && !operation->ofDevice()) {
    logError(operation->status().message());
  }
}

void waitByStream(
    const std::shared_ptr<GroupHandle>& handle,
    const OperationPtr& operation,
    const DeviceStream& stream,
    milliseconds limit) {
  if (operation->decided()) {
    return;
  }
  refuseInForkedChild();
  const auto hold = handle->engine->blockStream(stream, *operation);
  if (!hold ||
      !StreamWatchdog::instance().watch(handle, operation, hold, limit)) {
    waitOrTakeBack(*handle, operation, limit);
    return;
  }
  // Logs the failure, because code reading the stream's results may never ask
  // the work.
  operation->onDone([ended = operation.get()] {
    if (!ended->status().ok()) {
      logError("a stream was let go, since " + ended->status().message());
    }
  });
}

void GroupHandle::requireUsable() const {
  refuseInForkedChild();
  if (suspended.load(std::memory_order_relaxed)) {
    throw Error(
        ErrorCode::kUnusable,
        "group \"" + options().name +
            "\" is suspended: call resume() of its backend first");
  }
}

void waitOrTakeBack(
    GroupHandle& handle,
    const OperationPtr& operation,
    milliseconds limit,
    Signals signals) {
  auto& engine = *handle.engine;
  engine.noteFetched();
  if (operation->done()) {
    return;
  }
  refuseInForkedChild();
  if (limit > handle.options().timeout) {
    Engine::awaitUntil(*handle.group, deadlineAfter(limit));
  }
  const bool done = signals == Signals::kHeed
      ? waitHeedingSignals(engine, *operation, limit)
      : engine.wait(*operation, limit);
  if (!done) {
    takeBack(handle, operation, limit);
  }
}

} // namespace dlslime
