#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <memory>

#include "torch_ext/c10d/work_future.h"
#include "torch_ext/support/waiting.h"

namespace dlslime {

// Work of a single send or receive. Any number of threads may wait, any number
// of times; a work may also be dropped without a wait.
class P2PWork final : public c10d::Work {
 public:
  // result() of a receive returns `tensors`.
  P2PWork(
      std::shared_ptr<GroupHandle> handle,
      OperationPtr operation,
      c10d::OpType type,
      std::vector<at::Tensor> tensors,
      const char* profilingTitle);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  // Blocks until the source is known, for a receive of CUDA tensors from any
  // source.
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  // Same as wait() for CUDA tensors. Does nothing for CPU tensors, which have
  // no stream.
  void synchronize() override;
  void blockCurrentStream() override {
    wait(kNoTimeout);
  }
  // kNoTimeout means the group's time-out. A wait that times out takes the
  // operation back: when the call throws, the memory is the caller's again, and
  // the pair works on. For CUDA tensors the current stream waits instead of the
  // caller; a later failure is logged, and raised by the next call.
  bool wait(std::chrono::milliseconds timeout) override;
  void abort() override;
  // Callbacks of the future run on a separate thread, one after the other.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  // Makes sure that the future is completed when wait() returns, unless an
  // earlier callback runs long.
  void awaitFuture();

  const std::shared_ptr<GroupHandle> handle_;
  const OperationPtr operation_;
  const std::vector<at::Tensor> tensors_;
  std::mutex futureMutex_;
  std::shared_ptr<WorkFuture> future_; // guarded by futureMutex_
  std::atomic<bool> hasFuture_{false}; // lets wait() take no lock
};

} // namespace dlslime
