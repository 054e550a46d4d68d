#include "torch_ext/waiting.h"

#include "core/log.h"
#include "torch_ext/overdue.h"

namespace dlslime {

namespace {

// What a cancelled operation may take to let go of its memory before we stop
// waiting for that: a peer answers in microseconds unless it is stuck.
constexpr milliseconds kGrace{1000};
constexpr size_t kPendingShown = 16;

} // namespace

void takeBack(
    GroupHandle& handle,
    const OperationPtr& operation,
    milliseconds limit) {
  auto& engine = *handle.engine;
  auto& group = *handle.group;
  const Status why(
      ErrorCode::kTimeout,
      operation->describe() + " timed out after " +
          std::to_string(limit.count()) +
          " ms: " + engine.describeLink(group, *operation) +
          ". Pending in group \"" + group.options().name +
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
  if (operation->done()) {
    return;
  }
  refuseInForkedChild();
  if (!handle->engine->holdStream(stream, *operation)) {
    waitOrTakeBack(*handle, operation, limit);
    return;
  }
  // Whoever reads what the stream computed then may not ask the work.
  operation->onDone([ended = operation.get()] {
    if (!ended->status().ok()) {
      logError("a stream was let go, since " + ended->status().message());
    }
  });
  Overdue::instance().watch(handle, operation, limit);
}

void GroupHandle::requireUsable() const {
  refuseInForkedChild();
  if (suspended.load(std::memory_order_relaxed)) {
    throw Error(
        ErrorCode::kInvalidArgument,
        "group \"" + group->options().name +
            "\" is suspended: call resume() of its backend first");
  }
}

void waitOrTakeBack(
    GroupHandle& handle,
    const OperationPtr& operation,
    milliseconds limit) {
  handle.engine->noteFetched();
  if (operation->done()) {
    return;
  }
  refuseInForkedChild();
  if (!handle.engine->wait(*operation, limit)) {
    takeBack(handle, operation, limit);
  }
}

} // namespace dlslime
