#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <mutex>
#include <vector>

#include "interface/operation.h"

namespace dlslime {

// Converts a failed status to torch's DistBackendError.
std::exception_ptr makeException(const Status& status);

// Future of an operation, completed by the callback thread. Callbacks of users
// run on the callback thread, too.
class WorkFuture : public std::enable_shared_from_this<WorkFuture> {
 public:
  using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;

  static std::shared_ptr<WorkFuture> of(
      const OperationPtr& operation,
      std::vector<at::Tensor> tensors);

  const FuturePtr& future() const {
    return future_;
  }
  // Waits, once the operation is done, until the future is completed. Returns
  // early if earlier callbacks run long.
  void await(Operation& operation);

 private:
  explicit WorkFuture(std::vector<at::Tensor> tensors);
  uint64_t post(Operation& operation);
  void fulfil(const Operation& operation) const;

  const std::vector<at::Tensor> tensors_;
  const FuturePtr future_;
  std::mutex mutex_;
  uint64_t ticket_ = 0; // guarded by mutex_; 0: not posted
};

} // namespace dlslime
