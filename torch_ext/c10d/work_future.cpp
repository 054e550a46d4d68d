#include "torch_ext/c10d/work_future.h"

#include <thread>

#include "base/fork_guard.h"
#include "torch_ext/support/callback_thread.h"
#include "torch_ext/support/python_end.h"

namespace dlslime {

namespace {

std::vector<c10::Device> devicesOf(const std::vector<at::Tensor>& tensors) {
  return tensors[0].is_cpu() ? std::vector<c10::Device>()
                             : std::vector{tensors[0].device()};
}

} // namespace

WorkFuture::WorkFuture(std::vector<at::Tensor> tensors)
    : tensors_(std::move(tensors)),
      future_(c10::make_intrusive<c10::ivalue::Future>(
          c10::ListType::create(c10::TensorType::get()),
          devicesOf(tensors_))) {}

std::shared_ptr<WorkFuture> WorkFuture::of(
    const OperationPtr& operation,
    std::vector<at::Tensor> tensors) {
  std::shared_ptr<WorkFuture> made(new WorkFuture(std::move(tensors)));
  if (operation->done()) {
    made->fulfil(*operation); // no callbacks are attached yet
    return made;
  }
  // The callback gets a raw pointer: the operation is alive while calling back,
  // and a shared pointer would be a cycle.
  operation->onDone([made, raw = operation.get()] { made->post(*raw); });
  return made;
}

uint64_t WorkFuture::post(Operation& operation) {
  const std::lock_guard<std::mutex> guard(mutex_);
  if (ticket_ == 0) {
    ticket_ = CallbackThread::instance().post(
        [self = shared_from_this(), ended = operation.shared_from_this()] {
          self->fulfil(*ended);
        });
  }
  return ticket_;
}

void WorkFuture::fulfil(const Operation& operation) const {
  if (operation.status().ok()) {
    future_->markCompleted(c10::IValue(tensors_));
  } else {
    future_->setError(makeException(operation.status()));
  }
}

void WorkFuture::await(Operation& operation) {
  if (future_->completed() || inForkedChild() || // without a callback thread
      !CallbackThread::instance().awaitTurn(post(operation))) {
    return;
  }
  // fulfil() completes the future before callbacks run, so yielding is enough.
  while (!future_->completed() && !pythonEnds()) {
    std::this_thread::yield();
  }
}

} // namespace dlslime
