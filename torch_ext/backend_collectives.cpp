// Collectives: each goes to torch's own backend for its device.
#include "core/random.h"
#include "torch_ext/backend.h"
#include "torch_ext/checked_call.h"

namespace dlslime {

using WorkPtr = DlslimeBackend::WorkPtr;

namespace {

// Tags of the backend's own messages, which no user's tag can be.
constexpr uint32_t kNonceTag = 0x80000000;
constexpr size_t kNonceBytes = 16;

} // namespace

// Rank 0 draws a number and sends it to the others by our own messages, which
// know one life of a job from another.
std::string DlslimeBackend::agreeNonce(c10::DeviceType device) {
  auto& engine = *handle_->engine;
  auto& group = *handle_->group;
  const auto tag = kNonceTag + static_cast<uint32_t>(device);
  auto nonce = std::make_shared<Bytes>(randomBytes(kNonceBytes));
  if (getRank() == 0) {
    for (int rank = 1; rank < getSize(); ++rank) {
      engine.send(
          group,
          std::make_shared<NoteOperation>(
              Operation::Kind::kSend, rank, tag, nonce));
    }
    return hex(*nonce);
  }
  const auto receive =
      std::make_shared<NoteOperation>(Operation::Kind::kReceive, 0, tag, nonce);
  engine.receive(group, receive);
  const auto limit = handle_->timeout.load();
  const std::string what = "dlslime: the first collective of group \"" +
      group.options().name + "\" (" + std::to_string(getSize()) + " ranks): ";
  if (!engine.wait(*receive, limit)) {
    engine.abandon(
        group, receive, Status(ErrorCode::kTimeout, "nonce timed out"));
    C10_THROW_ERROR(
        DistBackendError,
        what + "Timed out after " + std::to_string(limit.count()) +
            " ms waiting for rank 0, which has not called one");
  }
  if (!receive->status().ok()) {
    C10_THROW_ERROR(DistBackendError, what + receive->status().message());
  }
  return hex(*nonce);
}

c10::intrusive_ptr<c10d::Backend> DlslimeBackend::collectiveOn(
    c10::DeviceType device) {
  checkedCall([&] { handle_->requireUsable(); });
  TORCH_CHECK_WITH(
      DistBackendError,
      !aborted_.load(),
      "dlslime: the process group was aborted");
  sequence_.fetch_add(1);
  return collectives_.forDevice(device);
}

c10d::Backend& DlslimeBackend::collective(const Tensors& tensors) {
  // The map keeps it alive for as long as this object lives.
  return *collectiveOn(
      tensors.empty() ? c10::DeviceType::CPU : tensors[0].device().type());
}

c10d::Backend& DlslimeBackend::collective(const std::vector<Tensors>& lists) {
  return collective(lists.empty() ? Tensors() : lists[0]);
}

WorkPtr DlslimeBackend::broadcast(
    Tensors& tensors,
    const c10d::BroadcastOptions& options) {
  return collective(tensors).broadcast(tensors, options);
}

WorkPtr DlslimeBackend::allreduce(
    Tensors& tensors,
    const c10d::AllreduceOptions& options) {
  return collective(tensors).allreduce(tensors, options);
}

WorkPtr DlslimeBackend::allreduce_sparse(
    Tensors& tensors,
    const c10d::AllreduceOptions& options) {
  // Gloo has it under the name of the dense one.
  return collective(tensors).allreduce(tensors, options);
}

WorkPtr DlslimeBackend::allreduce_coalesced(
    Tensors& tensors,
    const c10d::AllreduceCoalescedOptions& options) {
  return collective(tensors).allreduce_coalesced(tensors, options);
}

WorkPtr DlslimeBackend::reduce(
    Tensors& tensors,
    const c10d::ReduceOptions& options) {
  return collective(tensors).reduce(tensors, options);
}

WorkPtr DlslimeBackend::allgather(
    std::vector<Tensors>& outputs,
    Tensors& inputs,
    const c10d::AllgatherOptions& options) {
  return collective(inputs).allgather(outputs, inputs, options);
}

WorkPtr DlslimeBackend::_allgather_base(
    at::Tensor& output,
    at::Tensor& input,
    const c10d::AllgatherOptions& options) {
  return collective(Tensors{input})._allgather_base(output, input, options);
}

WorkPtr DlslimeBackend::allgather_coalesced(
    std::vector<Tensors>& outputs,
    Tensors& inputs,
    const c10d::AllgatherOptions& options) {
  return collective(inputs).allgather_coalesced(outputs, inputs, options);
}

WorkPtr DlslimeBackend::allgather_into_tensor_coalesced(
    Tensors& outputs,
    Tensors& inputs,
    const c10d::AllgatherOptions& options) {
  return collective(inputs).allgather_into_tensor_coalesced(
      outputs, inputs, options);
}

WorkPtr DlslimeBackend::gather(
    std::vector<Tensors>& outputs,
    Tensors& inputs,
    const c10d::GatherOptions& options) {
  return collective(inputs).gather(outputs, inputs, options);
}

WorkPtr DlslimeBackend::scatter(
    Tensors& outputs,
    std::vector<Tensors>& inputs,
    const c10d::ScatterOptions& options) {
  return collective(outputs).scatter(outputs, inputs, options);
}

WorkPtr DlslimeBackend::reduce_scatter(
    Tensors& outputs,
    std::vector<Tensors>& inputs,
    const c10d::ReduceScatterOptions& options) {
  return collective(outputs).reduce_scatter(outputs, inputs, options);
}

WorkPtr DlslimeBackend::_reduce_scatter_base(
    at::Tensor& output,
    at::Tensor& input,
    const c10d::ReduceScatterOptions& options) {
  return collective(Tensors{output})
      ._reduce_scatter_base(output, input, options);
}

WorkPtr DlslimeBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs,
    Tensors& inputs,
    const c10d::ReduceScatterOptions& options) {
  return collective(outputs).reduce_scatter_tensor_coalesced(
      outputs, inputs, options);
}

WorkPtr DlslimeBackend::alltoall_base(
    at::Tensor& output,
    at::Tensor& input,
    std::vector<int64_t>& outputSplits,
    std::vector<int64_t>& inputSplits,
    const c10d::AllToAllOptions& options) {
  return collective(Tensors{input})
      .alltoall_base(output, input, outputSplits, inputSplits, options);
}

WorkPtr DlslimeBackend::alltoall(
    Tensors& outputs,
    Tensors& inputs,
    const c10d::AllToAllOptions& options) {
  return collective(inputs).alltoall(outputs, inputs, options);
}

WorkPtr DlslimeBackend::barrier(const c10d::BarrierOptions& options) {
  const auto device =
      options.device ? options.device->type() : c10::DeviceType::CPU;
  return collectiveOn(device)->barrier(options);
}

void DlslimeBackend::monitoredBarrier(
    const c10d::BarrierOptions& options,
    bool waitAllRanks) {
  collectiveOn(c10::DeviceType::CPU)->monitoredBarrier(options, waitAllRanks);
}

} // namespace dlslime
