#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "interface/operation.h"
#include "torch_ext/support/device_stream.h"
#include "torch_ext/support/python_end.h"

namespace dlslime {

// The one tensor of something that `what` names, checked: exactly one, dense,
// on the CPU, contiguous. Throws ValueError or TypeError that says what to do.
const at::Tensor& checkedTensor(
    const char* what,
    const std::vector<at::Tensor>& tensors);
// The same of a "send" or "recv", which may be on a GPU.
const at::Tensor& checkedMessage(
    const char* what,
    const std::vector<at::Tensor>& tensors);

// Its bytes, and its GPU unless it is empty. Taken when the operation is
// posted: what the tensor is made to point to later does not matter.
MemoryView bytesOf(const at::Tensor& tensor, MemoryOwner* owner = nullptr);

// An operation on a tensor's bytes that owns their storage, and not just the
// tensor: `t.data = other` between post and completion must not free them.
class TensorOperation final : public Operation, public MemoryOwner {
 public:
  TensorOperation(Kind kind, int peer, uint32_t tag, const at::Tensor& tensor)
      : Operation(kind, peer, tag, bytesOf(tensor, this)),
        storage_(tensor.storage()) {
    if (ofDevice()) {
      onDevice = std::make_unique<OnDevice>();
      onDevice->stream = currentStream(tensor.device());
    }
  }

  MemoryView allocation() const override;
  bool onEnd(std::function<void()> ended) override;

 private:
  void releaseMemory() override {
    dropOrLeak(storage_);
  }

  c10::Storage storage_;
};

} // namespace dlslime
