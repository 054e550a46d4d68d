#include "torch_ext/support/tensor_view.h"

#include <sstream>

#include "torch_ext/support/memory_watch.h"

namespace dlslime {

namespace {

std::string shapeText(const at::Tensor& tensor) {
  std::ostringstream text;
  text << "shape " << tensor.sizes() << ", strides " << tensor.strides();
  return text.str();
}

// Refuses a tensor whose numbers are not the bytes in memory, and a tensor
// reaching beyond the storage: FSDP takes the memory of parameters away from
// under the tensors.
void requirePlainBytes(const char* what, const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(
      !tensor.is_conj() && !tensor.is_neg(),
      "dlslime: ",
      what,
      " of a tensor that is to be conjugated or negated when it is read is not "
      "supported; call .resolve_conj() or .resolve_neg() first");
  const auto end =
      static_cast<size_t>(tensor.storage_offset()) * tensor.element_size() +
      tensor.nbytes();
  const auto there = tensor.storage().nbytes();
  TORCH_CHECK_VALUE(
      tensor.nbytes() == 0 || end <= there,
      "dlslime: ",
      what,
      " of a tensor that ends at byte ",
      end,
      " of a storage that has only ",
      there,
      ": it was resized under the tensor");
}

} // namespace

const at::Tensor& checkedMessage(
    const char* what,
    const std::vector<at::Tensor>& tensors) {
  TORCH_CHECK_VALUE(
      tensors.size() == 1,
      "dlslime: ",
      what,
      " takes exactly one tensor, not ",
      tensors.size());
  const auto& tensor = tensors[0];
  TORCH_CHECK_VALUE(
      tensor.layout() == at::kStrided,
      "dlslime: ",
      what,
      " of a tensor with layout ",
      tensor.layout(),
      " is not supported; send its dense parts (indices and values) instead");
  TORCH_CHECK_VALUE(
      tensor.device().is_cpu() || tensor.device().is_cuda(),
      "dlslime: ",
      what,
      " of a tensor on ",
      tensor.device(),
      " is not supported, only on CPUs and CUDA GPUs; call .cpu() first");
  TORCH_CHECK_VALUE(
      tensor.is_contiguous(),
      "dlslime: ",
      what,
      " of a non-contiguous tensor is not supported (",
      shapeText(tensor),
      "); call .contiguous() first",
      *what == 'r' ? " and copy the result back" : "");
  requirePlainBytes(what, tensor);
  return tensor;
}

const at::Tensor& checkedTensor(
    const char* what,
    const std::vector<at::Tensor>& tensors) {
  const auto& tensor = checkedMessage(what, tensors);
  TORCH_CHECK_VALUE(
      tensor.device().is_cpu(),
      "dlslime: ",
      what,
      " of a tensor on ",
      tensor.device(),
      " is not supported by this version: only messages and one-sided "
      "transfers take memory of GPUs; call .cpu() first");
  return tensor;
}

MemoryView bytesOf(const at::Tensor& tensor, MemoryOwner* owner) {
  // Takes the storage's own pointer: data_ptr() would add checks for tensors
  // that require grad and for inference tensors.
  auto* const base = static_cast<std::byte*>(tensor.storage()
                                                 .unsafeGetStorageImpl()
                                                 ->mutable_data_ptr()
                                                 .mutable_get());
  const auto offset =
      static_cast<size_t>(tensor.storage_offset()) * tensor.itemsize();
  const bool onGpu = tensor.is_cuda() && tensor.nbytes() != 0;
  MemoryView view{
      base + offset,
      tensor.nbytes(),
      owner,
      onGpu ? tensor.device().index() : MemoryView::kProcessor};
  view.mayFault = !onGpu && !isOfAllocator(tensor.storage());
  return view;
}

MemoryView TensorOperation::allocation() const {
  const auto* const storage = storage_.unsafeGetStorageImpl();
  return {
      static_cast<std::byte*>(const_cast<void*>(storage->data())),
      storage->nbytes()};
}

bool TensorOperation::onEnd(std::function<void()> ended) {
  return watchEnd(storage_, std::move(ended));
}

} // namespace dlslime
