// Collectives: each goes to torch's own backend for its device.
#include "torch_ext/backend.h"
#include "torch_ext/checked_call.h"
#include "torch_ext/timeouts.h"

namespace dlslime {

using WorkPtr = DlslimeBackend::WorkPtr;

c10::intrusive_ptr<c10d::Backend> DlslimeBackend::collectiveOn(
    c10::DeviceType device,
    std::chrono::milliseconds timeout) {
  const auto limit = limitOf(timeout);
  beginCollective();
  return collectives_.forDevice(device, limit);
}

void DlslimeBackend::beginCollective() {
  checkedCall([&] { handle_->requireUsable(); });
  TORCH_CHECK_WITH(
      DistBackendError,
      !aborted_.load(),
      "dlslime: the process group was aborted");
  sequence_.fetch_add(1);
}

std::chrono::milliseconds DlslimeBackend::limitOf(
    std::chrono::milliseconds timeout) const {
  return timeout == c10d::kUnsetTimeout
      ? handle_->timeout.load()
      : checkedTimeout("a collective's", timeout);
}

c10d::Backend& DlslimeBackend::collective(
    const Tensors& tensors,
    std::chrono::milliseconds timeout) {
  // The map keeps it alive for as long as this object lives.
  return *collectiveOn(
      tensors.empty() ? c10::DeviceType::CPU : tensors[0].device().type(),
      timeout);
}

c10d::Backend& DlslimeBackend::collective(
    const std::vector<Tensors>& lists,
    std::chrono::milliseconds timeout) {
  return collective(lists.empty() ? Tensors() : lists[0], timeout);
}

WorkPtr DlslimeBackend::broadcast(
    Tensors& tensors,
    const c10d::BroadcastOptions& options) {
  return collective(tensors, options.timeout).broadcast(tensors, options);
}

WorkPtr DlslimeBackend::allreduce(
    Tensors& tensors,
    const c10d::AllreduceOptions& options) {
  return collective(tensors, options.timeout).allreduce(tensors, options);
}

WorkPtr DlslimeBackend::allreduce_sparse(
    Tensors& tensors,
    const c10d::AllreduceOptions& options) {
  // Gloo has it under the name of the dense one.
  return collective(tensors, options.timeout).allreduce(tensors, options);
}

WorkPtr DlslimeBackend::allreduce_coalesced(
    Tensors& tensors,
    const c10d::AllreduceCoalescedOptions& options) {
  return collective(tensors, options.timeout)
      .allreduce_coalesced(tensors, options);
}

WorkPtr DlslimeBackend::reduce(
    Tensors& tensors,
    const c10d::ReduceOptions& options) {
  return collective(tensors, options.timeout).reduce(tensors, options);
}

WorkPtr DlslimeBackend::allgather(
    std::vector<Tensors>& outputs,
    Tensors& inputs,
    const c10d::AllgatherOptions& options) {
  return collective(inputs, options.timeout)
      .allgather(outputs, inputs, options);
}

WorkPtr DlslimeBackend::_allgather_base(
    at::Tensor& output,
    at::Tensor& input,
    const c10d::AllgatherOptions& options) {
  return collective(Tensors{input}, options.timeout)
      ._allgather_base(output, input, options);
}

WorkPtr DlslimeBackend::allgather_coalesced(
    std::vector<Tensors>& outputs,
    Tensors& inputs,
    const c10d::AllgatherOptions& options) {
  return collective(inputs, options.timeout)
      .allgather_coalesced(outputs, inputs, options);
}

WorkPtr DlslimeBackend::allgather_into_tensor_coalesced(
    Tensors& outputs,
    Tensors& inputs,
    const c10d::AllgatherOptions& options) {
  return collective(inputs, options.timeout)
      .allgather_into_tensor_coalesced(outputs, inputs, options);
}

WorkPtr DlslimeBackend::gather(
    std::vector<Tensors>& outputs,
    Tensors& inputs,
    const c10d::GatherOptions& options) {
  return collective(inputs, options.timeout).gather(outputs, inputs, options);
}

WorkPtr DlslimeBackend::scatter(
    Tensors& outputs,
    std::vector<Tensors>& inputs,
    const c10d::ScatterOptions& options) {
  return collective(outputs, options.timeout).scatter(outputs, inputs, options);
}

WorkPtr DlslimeBackend::reduce_scatter(
    Tensors& outputs,
    std::vector<Tensors>& inputs,
    const c10d::ReduceScatterOptions& options) {
  return collective(outputs, options.timeout)
      .reduce_scatter(outputs, inputs, options);
}

WorkPtr DlslimeBackend::_reduce_scatter_base(
    at::Tensor& output,
    at::Tensor& input,
    const c10d::ReduceScatterOptions& options) {
  return collective(Tensors{output}, options.timeout)
      ._reduce_scatter_base(output, input, options);
}

WorkPtr DlslimeBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs,
    Tensors& inputs,
    const c10d::ReduceScatterOptions& options) {
  return collective(outputs, options.timeout)
      .reduce_scatter_tensor_coalesced(outputs, inputs, options);
}

WorkPtr DlslimeBackend::alltoall_base(
    at::Tensor& output,
    at::Tensor& input,
    std::vector<int64_t>& outputSplits,
    std::vector<int64_t>& inputSplits,
    const c10d::AllToAllOptions& options) {
  return collective(Tensors{input}, options.timeout)
      .alltoall_base(output, input, outputSplits, inputSplits, options);
}

WorkPtr DlslimeBackend::alltoall(
    Tensors& outputs,
    Tensors& inputs,
    const c10d::AllToAllOptions& options) {
  return collective(inputs, options.timeout).alltoall(outputs, inputs, options);
}

WorkPtr DlslimeBackend::barrier(const c10d::BarrierOptions& options) {
  const auto device =
      options.device ? options.device->type() : c10::DeviceType::CPU;
  return collectiveOn(device, options.timeout)->barrier(options);
}

void DlslimeBackend::monitoredBarrier(
    const c10d::BarrierOptions& options,
    bool waitAllRanks) {
  const auto limit = limitOf(options.timeout);
  beginCollective();
  monitoredBarrier_.run(limit, waitAllRanks);
}

} // namespace dlslime
