#include "torch_ext/waiting.h"

#include "core/log.h"

namespace dlslime {

namespace {

// What a cancelled operation may take to let go of its memory before we stop
// waiting for that: a peer answers in microseconds unless it is stuck.
constexpr milliseconds kGrace{1000};
constexpr size_t kPendingShown = 16;

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
  if (!operation->status().ok()) {
    logError(operation->status().message());
  }
}

} // namespace

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
