#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <mutex>
#include <vector>

#include "interface/operation.h"

namespace dlslime {

// The torch error that a status that is not ok becomes.
std::exception_ptr makeException(const Status& status);

// The future of one operation. What users hang on it runs on the callbacks'
// thread, which fulfils it.
class WorkFuture : public std::enable_shared_from_this<WorkFuture> {
 public:
  using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;

  static std::shared_ptr<WorkFuture> of(
      const OperationPtr& operation,
      std::vector<at::Tensor> tensors);

  const FuturePtr& future() const {
    return future_;
  }
  // Once the operation is done: returns when the future is, too, or when a
  // callback of another one takes its time.
  void await(Operation& operation);

 private:
  explicit WorkFuture(std::vector<at::Tensor> tensors);
  uint64_t post(Operation& operation);
  void fulfil(const Operation& operation) const;

  const std::vector<at::Tensor> tensors_;
  const FuturePtr future_;
  std::mutex mutex_;
  uint64_t ticket_ = 0; // guarded by mutex_; 0: it is not posted
};

} // namespace dlslime
