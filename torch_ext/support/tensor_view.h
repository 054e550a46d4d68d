#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "interface/operation.h"
#include "torch_ext/support/device_stream.h"
#include "torch_ext/support/python_end.h"

namespace dlslime {

// Returns the only tensor, checked to be dense, contiguous and on the CPU.
// Throws ValueError with advice; `what` names the operation in the text.
const at::Tensor& checkedTensor(
    const char* what,
    const std::vector<at::Tensor>& tensors);
// Like checkedTensor(), for a "send", "recv" or "registration", which may be on
// a GPU.
const at::Tensor& checkedMessage(
    const char* what,
    const std::vector<at::Tensor>& tensors);

// Returns the tensor's bytes, and the GPU unless the tensor is empty. Taken
// when the operation is posted, so later changes of the tensor's data do not
// matter.
MemoryView bytesOf(const at::Tensor& tensor, MemoryOwner* owner = nullptr);

// Operation on a tensor's bytes. Owns the storage, not just the tensor: `t.data
// = x` between post and completion must not free the bytes.
class TensorOperation final : public Operation, public MemoryOwner {
 public:
  TensorOperation(Kind kind, int peer, uint32_t tag, const at::Tensor& tensor)
      : Operation(kind, peer, tag, bytesOf(tensor, this)),
        storage_(tensor.storage()) {
    elementType = static_cast<uint8_t>(tensor.scalar_type());
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
