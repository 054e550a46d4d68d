#include "torch_ext/c10d/collective_checks.h"

#include <torch/csrc/distributed/c10d/Utils.hpp>

#include <algorithm>
#include <functional>
#include <string>

namespace dlslime {

namespace {

using Refuse = std::function<void(const std::string&)>;

Refuse refusalOf(const char* collective) {
  return [collective](const std::string& why) {
    TORCH_CHECK(false, "dlslime: ", collective, ": ", why);
  };
}

std::string describe(const at::Tensor& tensor) {
  return c10::str("of ", tensor.dtype(), " ", tensor.sizes());
}

template <typename List>
void requireInputs(const Refuse& refuse, const List& inputs) {
  if (inputs.empty()) {
    refuse("requires non-empty input tensor list");
  }
}

void requireSameCount(const Refuse& refuse, size_t outputs, size_t inputs) {
  if (outputs != inputs) {
    refuse("requires input/output tensor lists to have the same length");
  }
}

// Refuses anything but a single list with a tensor for each rank, at the root
// of a gather or scatter.
void requireList(
    const Refuse& refuse,
    const CollectiveChecks::Lists& lists,
    const std::string& side,
    int size) {
  if (lists.size() != 1) {
    refuse(
        "requires a single-element " + side + " list containing a list with " +
        std::to_string(size) + " tensors.");
  }
  if (lists[0].size() != size_t(size)) {
    refuse(
        "Incorrect " + side + " list size " + std::to_string(lists[0].size()) +
        ". " + (side == "input" ? "Input" : "Output") +
        " list size should be " + std::to_string(size) +
        ", same as size of the process group.");
  }
}

void requirePerRank(
    const Refuse& refuse,
    const CollectiveChecks::Tensors& tensors,
    const std::string& side,
    int size) {
  if (tensors.size() != size_t(size)) {
    refuse(
        side + " tensor list size " + std::to_string(tensors.size()) +
        " does not match world size " + std::to_string(size));
  }
}

} // namespace

void CollectiveChecks::broadcast(
    const Tensors& tensors,
    const c10d::BroadcastOptions& options) const {
  const auto refuse = refusalOf("broadcast");
  c10d::assertRootRank(refuse, options.rootRank, size_);
  c10d::assertRootTensor(refuse, options.rootTensor, int64_t(tensors.size()));
  c10d::assertDense(refuse, tensors);
  c10d::assertTypeAndSizesMatch(refuse, tensors);
}

void CollectiveChecks::allreduce(
    const Tensors& tensors,
    const c10d::AllreduceOptions& options) const {
  const auto refuse = refusalOf("allreduce");
  c10d::assertNonEmpty(refuse, tensors);
  c10d::assertLayoutMatch(refuse, tensors);
  c10d::assertTypeAndSizesMatch(refuse, tensors);
  if (tensors[0].layout() == c10::kSparse &&
      options.reduceOp != c10d::ReduceOp::SUM) {
    refuse(
        "unsupported reduction operation (allreduce of sparse tensors only "
        "works with ReduceOp.SUM)");
  }
}

void CollectiveChecks::allreduceCoalesced(const Tensors& tensors) const {
  const auto refuse = refusalOf("allreduce_coalesced");
  c10d::assertNonEmpty(refuse, tensors);
  c10d::assertLayoutMatch(refuse, tensors);
  const auto& first = tensors[0];
  if (!std::all_of(tensors.begin(), tensors.end(), [&](const auto& tensor) {
        return tensor.options().type_equal(first.options());
      })) {
    refuse("tensors must all have the same type");
  }
  if (first.layout() != c10::kStrided) {
    refuse("unsupported layout");
  }
}

void CollectiveChecks::reduce(
    const Tensors& tensors,
    const c10d::ReduceOptions& options) const {
  const auto refuse = refusalOf("reduce");
  c10d::assertRootRank(refuse, options.rootRank, size_);
  c10d::assertRootTensor(refuse, options.rootTensor, int64_t(tensors.size()));
  c10d::assertSingleElement(refuse, tensors);
  c10d::assertDense(refuse, tensors);
}

void CollectiveChecks::allgather(const Lists& outputs, const Tensors& inputs)
    const {
  const auto refuse = refusalOf("allgather");
  requireInputs(refuse, inputs);
  requireSameCount(refuse, outputs.size(), inputs.size());
  const size_t expected = inputs.size() * size_;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].size() != expected) {
      refuse(
          "invalid output tensor list at index " + std::to_string(i) +
          " (expected length " + std::to_string(expected) + ", got " +
          std::to_string(outputs[i].size()) + ")");
    }
  }
  c10d::assertDense(refuse, inputs);
  const auto options = inputs[0].options();
  const auto sizes = inputs[0].sizes();
  c10d::assertTypeAndSizesMatch(refuse, inputs, options, sizes);
  for (const auto& output : outputs) {
    c10d::assertTypeAndSizesMatch(refuse, output, options, sizes);
  }
}

void CollectiveChecks::allgatherBase(
    const at::Tensor& output,
    const at::Tensor& input) const {
  const auto whole = output.sizes(), part = input.sizes();
  const bool fits = !part.empty() && whole.size() == part.size() &&
      whole[0] == part[0] * size_ && whole.slice(1) == part.slice(1) &&
      output.options().type_equal(input.options());
  if (!fits) { // chunk() may still cut fitting parts
    allgather({at::chunk(output, size_, 0)}, {input});
  }
}

void CollectiveChecks::allgatherCoalesced(
    const Lists& outputs,
    const Tensors& inputs) const {
  const auto refuse = refusalOf("allgather_coalesced");
  requireInputs(refuse, inputs);
  if (outputs.size() != size_t(size_)) {
    refuse("output lists should be equal to world size");
  }
  for (const auto& list : outputs) {
    if (list.size() != inputs.size()) {
      refuse(
          "invalid output size: (expected length " +
          std::to_string(inputs.size()) + ", got " +
          std::to_string(list.size()) + ")");
    }
    for (size_t i = 0; i < list.size(); ++i) {
      if (list[i].sizes() != inputs[i].sizes()) {
        refuse(
            "invalid size of output tensor at index " + std::to_string(i) +
            " (expected length " + c10d::toString(inputs[i].sizes()) +
            ", got " + c10d::toString(list[i].sizes()) + ")");
      }
      if (!list[i].options().type_equal(inputs[i].options())) {
        refuse(
            "invalid tensor type at index " + std::to_string(i) +
            " (expected " + inputs[i].toString() + ", got " +
            list[i].toString() + ")");
      }
    }
  }
  c10d::assertDense(refuse, inputs);
}

void CollectiveChecks::allgatherIntoTensorCoalesced(
    const Tensors& outputs,
    const Tensors& inputs) const {
  requireSameCount(
      refusalOf("allgather_into_tensor_coalesced"),
      outputs.size(),
      inputs.size());
  Lists lists(size_);
  for (const auto& output : outputs) {
    const auto chunks = output.chunk(size_); // may be fewer than the ranks
    for (size_t i = 0; i < chunks.size(); ++i) {
      lists[i].push_back(chunks[i]);
    }
  }
  allgatherCoalesced(lists, inputs);
}

void CollectiveChecks::gather(
    const Lists& outputs,
    const Tensors& inputs,
    const c10d::GatherOptions& options) const {
  const auto refuse = refusalOf("gather");
  c10d::assertRootRank(refuse, options.rootRank, size_);
  c10d::assertSingleElementInput(refuse, inputs);
  c10d::assertDense(refuse, inputs);
  if (rank_ == options.rootRank) {
    requireList(refuse, outputs, "output", size_);
    c10d::assertTypeAndSizesMatch(
        refuse, outputs[0], inputs[0].options(), inputs[0].sizes());
  } else if (!outputs.empty()) {
    refuse("requires empty output on non-root");
  }
}

void CollectiveChecks::scatter(
    const Tensors& outputs,
    const Lists& inputs,
    const c10d::ScatterOptions& options) const {
  const auto refuse = refusalOf("scatter");
  c10d::assertRootRank(refuse, options.rootRank, size_);
  c10d::assertSingleElementOutput(refuse, outputs);
  c10d::assertDense(refuse, outputs);
  if (rank_ == options.rootRank) {
    requireList(refuse, inputs, "input", size_);
    c10d::assertTypeAndSizesMatch(
        refuse, inputs[0], outputs[0].options(), outputs[0].sizes());
  } else if (!inputs.empty()) {
    refuse("requires empty input on non-root");
  }
}

void CollectiveChecks::reduceScatter(
    const Tensors& outputs,
    const Lists& inputs) const {
  const auto refuse = refusalOf("reduce_scatter");
  if (outputs.size() != 1) {
    refuse("reduce_scatter only supports 1 output");
  }
  requireSameCount(refuse, outputs.size(), inputs.size());
  if (inputs[0].size() != size_t(size_)) {
    refuse("invalid input tensor list size, must be world size");
  }
  const auto& own = inputs[0][rank_];
  if (own.dtype() != outputs[0].dtype() || own.sizes() != outputs[0].sizes()) {
    refuse(c10::str(
        "the output ",
        describe(outputs[0]),
        " differs from the input ",
        describe(own),
        " of this rank"));
  }
}

void CollectiveChecks::reduceScatterTensors(
    const Tensors& outputs,
    const Tensors& inputs) const {
  const auto refuse = refusalOf("reduce_scatter_tensor");
  requireSameCount(refuse, outputs.size(), inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    const auto part = outputs[i].sizes(), whole = inputs[i].sizes();
    const bool fits = !part.empty() && whole.size() >= part.size() &&
        whole[0] == part[0] * size_ &&
        whole.slice(1, part.size() - 1) == part.slice(1);
    if (!fits || outputs[i].dtype() != inputs[i].dtype()) {
      refuse(c10::str(
          "output ",
          describe(outputs[i]),
          " is not one of ",
          size_,
          " equal parts of the input ",
          describe(inputs[i])));
    }
  }
}

void CollectiveChecks::alltoall(const Tensors& outputs, const Tensors& inputs)
    const {
  const auto refuse = refusalOf("alltoall");
  requirePerRank(refuse, inputs, "input", size_);
  requirePerRank(refuse, outputs, "output", size_);
  c10d::assertDense(refuse, outputs);
  c10d::assertDense(refuse, inputs);
  const auto options = outputs[0].options();
  for (const auto* list : {&outputs, &inputs}) {
    for (size_t i = 0; i < list->size(); ++i) {
      c10d::assertTypeMatch(refuse, options, *list, i);
    }
  }
}

void CollectiveChecks::alltoallBase(
    const at::Tensor& output,
    const at::Tensor& input,
    const std::vector<int64_t>& outputSplits,
    const std::vector<int64_t>& inputSplits) const {
  TORCH_CHECK(
      output.device() == input.device(),
      "dlslime: alltoall_base: output tensor and input tensor must be on the "
      "same type of device");
  if (!outputSplits.empty() || !inputSplits.empty()) {
    c10d::checkSplitSizes(inputSplits, input, size_);
    c10d::checkSplitSizes(outputSplits, output, size_);
  }
}

} // namespace dlslime
