#include "torch_ext/c10d/work.h"

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "torch_ext/support/checked_call.h"
#include "torch_ext/support/device_stream.h"
#include "torch_ext/support/python_end.h"
#include "torch_ext/support/timeouts.h"

namespace dlslime {

namespace {

[[noreturn]] void throwStatus(const Status& status) {
  C10_THROW_ERROR(DistBackendError, "dlslime: " + status.message());
}

} // namespace

std::exception_ptr makeException(const Status& status) {
  try {
    throwStatus(status);
  } catch (...) {
    return std::current_exception();
  }
}

P2PWork::P2PWork(
    std::shared_ptr<GroupHandle> handle,
    OperationPtr operation,
    c10d::OpType type,
    std::vector<at::Tensor> tensors,
    const char* profilingTitle)
    : Work(
          handle->rank(),
          type,
          profilingTitle,
          profilingTitle != nullptr
              ? std::optional<std::vector<at::Tensor>>(tensors)
              : std::nullopt),
      handle_(std::move(handle)),
      operation_(std::move(operation)),
      tensors_(std::move(tensors)) {
  // The base class sets the callback if a profiler listens and wants to know
  // the end.
  if (recordFunctionEndCallback_) {
    operation_->onDone([end = recordFunctionEndCallback_] { end(); });
    recordFunctionEndCallback_ = nullptr;
  }
}

bool P2PWork::isCompleted() {
  if (operation_->done()) {
    return true;
  }
  // Looks for news, because polling alone must be enough to make progress.
  const StaysWhenPythonEnds stays;
  checkedCall(refuseInForkedChild);
  handle_->engine->poke(operation_.get());
  return operation_->done();
}

bool P2PWork::isSuccess() const {
  return operation_->done() && operation_->status().ok();
}

std::exception_ptr P2PWork::exception() const {
  return operation_->decided() && !operation_->status().ok()
      ? makeException(operation_->status())
      : nullptr;
}

int P2PWork::sourceRank() const {
  TORCH_CHECK(
      operation_->kind() == Operation::Kind::kReceive,
      "dlslime: only a receive has a source rank");
  if (operation_->ofDevice() && operation_->peer() == Operation::kAnySource) {
    // Only a stream has waited so far, so the caller waits now.
    checkedCall(
        [&] { waitOrTakeBack(*handle_, operation_, handle_->timeout.load()); });
  }
  return operation_->done() ? operation_->source() : operation_->peer();
}

std::vector<at::Tensor> P2PWork::result() {
  TORCH_CHECK(
      operation_->ofDevice() || isCompleted(),
      "dlslime: the operation has not completed, and has no result yet; wait() "
      "first");
  return operation_->kind() == Operation::Kind::kReceive
      ? tensors_
      : std::vector<at::Tensor>();
}

bool P2PWork::wait(std::chrono::milliseconds timeout) {
  const StaysWhenPythonEnds stays;
  const auto limit = timeout == kNoTimeout
      ? handle_->timeout.load()
      : checkedTimeout("a wait's", timeout);
  checkedCall([&] {
    if (operation_->ofDevice()) {
      waitByStream(
          handle_, operation_, currentStream(tensors_[0].device()), limit);
    } else {
      waitOrTakeBack(*handle_, operation_, limit);
    }
  });
  if (c10d::allow_inflight_collective_as_graph_input()) {
    c10d::unregister_work(
        c10::intrusive_ptr<c10d::Work>::unsafe_reclaim_from_nonowning(this));
  }
  if (operation_->done() && hasFuture_.load(std::memory_order_acquire)) {
    awaitFuture();
  }
  if (operation_->decided() && !operation_->status().ok()) {
    throwStatus(operation_->status());
  }
  return true;
}

void P2PWork::synchronize() {
  if (operation_->ofDevice()) {
    wait(kNoTimeout);
  }
}

void P2PWork::abort() {
  handle_->engine->abandon(
      *handle_->group,
      operation_,
      Status(
          ErrorCode::kCancelled,
          operation_->describe() + " was aborted by its caller"));
}

c10::intrusive_ptr<c10::ivalue::Future> P2PWork::getFuture() {
  const std::lock_guard<std::mutex> guard(futureMutex_);
  if (!future_) {
    future_ = WorkFuture::of(operation_, tensors_);
    hasFuture_.store(true, std::memory_order_release);
    if (!operation_->done()) {
      handle_->engine->attend();
    }
  }
  return future_->future();
}

void P2PWork::awaitFuture() {
  std::shared_ptr<WorkFuture> future;
  {
    const std::lock_guard<std::mutex> guard(futureMutex_);
    future = future_;
  }
  future->await(*operation_);
}

} // namespace dlslime
