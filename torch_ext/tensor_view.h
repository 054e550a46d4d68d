#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "core/operation.h"

namespace dlslime {

// The one tensor of a send or receive, checked: exactly one, dense, on the
// CPU, contiguous. Throws ValueError or TypeError that says what to do.
// `what` is "send" or "recv".
const at::Tensor& checkedTensor(
    const char* what,
    const std::vector<at::Tensor>& tensors);

// Its bytes. Taken when the operation is posted: what the tensor is made to
// point to later does not matter.
MemoryView bytesOf(const at::Tensor& tensor, MemoryOwner* owner = nullptr);

// An operation on a tensor's bytes that owns their storage, and not just the
// tensor: `t.data = other` between post and completion must not free them.
class TensorOperation final : public Operation, public MemoryOwner {
 public:
  TensorOperation(Kind kind, int peer, uint32_t tag, const at::Tensor& tensor)
      : Operation(kind, peer, tag, bytesOf(tensor, this)),
        storage_(tensor.storage()) {}

  MemoryView allocation() const override;
  bool onEnd(std::function<void()> ended) override;

 private:
  void releaseMemory() override {
    storage_ = c10::Storage();
  }

  c10::Storage storage_;
};

} // namespace dlslime
