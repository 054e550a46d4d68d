#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <memory>

#include "torch_ext/c10d/work_future.h"
#include "torch_ext/support/waiting.h"

namespace dlslime {

// One send or receive, as torch sees it. Waiting any number of times, from
// any threads, is fine; so is never waiting, or dropping it.
class P2PWork final : public c10d::Work {
 public:
  // `tensors` is what result() returns.
  P2PWork(
      std::shared_ptr<GroupHandle> handle,
      OperationPtr operation,
      c10d::OpType type,
      std::vector<at::Tensor> tensors,
      const char* profilingTitle);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  // From any source, of CUDA tensors: blocks until it is known.
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  // Of CUDA tensors as wait(); CPU tensors have no stream.
  void synchronize() override;
  void blockCurrentStream() override {
    wait(kNoTimeout);
  }
  // kNoTimeout means the group's time-out. A wait that times out takes the
  // operation back: when it throws, the memory is the caller's again, and the
  // pair works on. Of CUDA tensors the current stream waits, and not the
  // caller: what goes wrong later is logged, and raised when it is asked again.
  bool wait(std::chrono::milliseconds timeout) override;
  void abort() override;
  // What is hung on it runs on a thread of its own, one after the other.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  // So that whoever asks the future after wait() finds it done, unless
  // another's callback takes its time.
  void awaitFuture();

  const std::shared_ptr<GroupHandle> handle_;
  const OperationPtr operation_;
  const std::vector<at::Tensor> tensors_;
  std::mutex futureMutex_;
  std::shared_ptr<WorkFuture> future_; // guarded by futureMutex_
  std::atomic<bool> hasFuture_{false}; // so that wait() takes no lock
};

} // namespace dlslime
