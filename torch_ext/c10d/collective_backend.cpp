#include "torch_ext/c10d/collective_backend.h"

namespace dlslime {

using WorkPtr = CollectiveBackend::WorkPtr;

namespace {
c10::DeviceType deviceOf(const CollectiveBackend::Tensors& tensors) {
  return tensors.empty() ? c10::DeviceType::CPU : tensors[0].device().type();
}
} // namespace

WorkPtr CollectiveBackend::broadcast(
    Tensors& tensors,
    const c10d::BroadcastOptions& options) {
  return collectives_.run(
      deviceOf(tensors),
      c10d::OpType::BROADCAST,
      options,
      [&](const auto& checks) { checks.broadcast(tensors, options); },
      [tensors = tensors](c10d::Backend& backend, const auto& own) mutable {
        return backend.broadcast(tensors, own);
      });
}

WorkPtr CollectiveBackend::allreduce(
    Tensors& tensors,
    const c10d::AllreduceOptions& options) {
  return collectives_.run(
      deviceOf(tensors),
      c10d::OpType::ALLREDUCE,
      options,
      [&](const auto& checks) { checks.allreduce(tensors, options); },
      [tensors = tensors](c10d::Backend& backend, const auto& own) mutable {
        return backend.allreduce(tensors, own);
      });
}

WorkPtr CollectiveBackend::allreduce_sparse(
    Tensors& tensors,
    const c10d::AllreduceOptions& options) {
  return collectives_.run(
      deviceOf(tensors),
      c10d::OpType::_ALLREDUCE_SPARSE,
      options,
      [&](const auto& checks) { checks.allreduce(tensors, options); },
      [tensors = tensors](c10d::Backend& backend, const auto& own) mutable {
        return backend.allreduce(tensors, own);
      });
}

WorkPtr CollectiveBackend::allreduce_coalesced(
    Tensors& tensors,
    const c10d::AllreduceCoalescedOptions& options) {
  return collectives_.run(
      deviceOf(tensors),
      c10d::OpType::ALLREDUCE_COALESCED,
      options,
      [&](const auto& checks) { checks.allreduceCoalesced(tensors); },
      [tensors = tensors](c10d::Backend& backend, const auto& own) mutable {
        return backend.allreduce_coalesced(tensors, own);
      });
}

WorkPtr CollectiveBackend::reduce(
    Tensors& tensors,
    const c10d::ReduceOptions& options) {
  return collectives_.run(
      deviceOf(tensors),
      c10d::OpType::REDUCE,
      options,
      [&](const auto& checks) { checks.reduce(tensors, options); },
      [tensors = tensors](c10d::Backend& backend, const auto& own) mutable {
        return backend.reduce(tensors, own);
      });
}

WorkPtr CollectiveBackend::allgather(
    std::vector<Tensors>& outputs,
    Tensors& inputs,
    const c10d::AllgatherOptions& options) {
  return collectives_.run(
      deviceOf(inputs),
      c10d::OpType::ALLGATHER,
      options,
      [&](const auto& checks) { checks.allgather(outputs, inputs); },
      [outputs = outputs, inputs = inputs](
          c10d::Backend& backend, const auto& own) mutable {
        return backend.allgather(outputs, inputs, own);
      });
}

WorkPtr CollectiveBackend::_allgather_base(
    at::Tensor& output,
    at::Tensor& input,
    const c10d::AllgatherOptions& options) {
  return collectives_.run(
      input.device().type(),
      c10d::OpType::_ALLGATHER_BASE,
      options,
      [&](const auto& checks) { checks.allgatherBase(output, input); },
      [output = output, input = input](
          c10d::Backend& backend, const auto& own) mutable {
        return backend._allgather_base(output, input, own);
      });
}

WorkPtr CollectiveBackend::allgather_coalesced(
    std::vector<Tensors>& outputs,
    Tensors& inputs,
    const c10d::AllgatherOptions& options) {
  return collectives_.run(
      deviceOf(inputs),
      c10d::OpType::ALLGATHER_COALESCED,
      options,
      [&](const auto& checks) { checks.allgatherCoalesced(outputs, inputs); },
      [outputs = outputs, inputs = inputs](
          c10d::Backend& backend, const auto& own) mutable {
        return backend.allgather_coalesced(outputs, inputs, own);
      });
}

WorkPtr CollectiveBackend::allgather_into_tensor_coalesced(
    Tensors& outputs,
    Tensors& inputs,
    const c10d::AllgatherOptions& options) {
  return collectives_.run(
      deviceOf(inputs),
      c10d::OpType::COALESCED,
      options,
      [&](const auto& checks) {
        checks.allgatherIntoTensorCoalesced(outputs, inputs);
      },
      [outputs = outputs, inputs = inputs](
          c10d::Backend& backend, const auto& own) mutable {
        return backend.allgather_into_tensor_coalesced(outputs, inputs, own);
      });
}

WorkPtr CollectiveBackend::gather(
    std::vector<Tensors>& outputs,
    Tensors& inputs,
    const c10d::GatherOptions& options) {
  return collectives_.run(
      deviceOf(inputs),
      c10d::OpType::GATHER,
      options,
      [&](const auto& checks) { checks.gather(outputs, inputs, options); },
      [outputs = outputs, inputs = inputs](
          c10d::Backend& backend, const auto& own) mutable {
        return backend.gather(outputs, inputs, own);
      });
}

WorkPtr CollectiveBackend::scatter(
    Tensors& outputs,
    std::vector<Tensors>& inputs,
    const c10d::ScatterOptions& options) {
  return collectives_.run(
      deviceOf(outputs),
      c10d::OpType::SCATTER,
      options,
      [&](const auto& checks) { checks.scatter(outputs, inputs, options); },
      [outputs = outputs, inputs = inputs](
          c10d::Backend& backend, const auto& own) mutable {
        return backend.scatter(outputs, inputs, own);
      });
}

WorkPtr CollectiveBackend::reduce_scatter(
    Tensors& outputs,
    std::vector<Tensors>& inputs,
    const c10d::ReduceScatterOptions& options) {
  return collectives_.run(
      deviceOf(outputs),
      c10d::OpType::REDUCE_SCATTER,
      options,
      [&](const auto& checks) { checks.reduceScatter(outputs, inputs); },
      [outputs = outputs, inputs = inputs](
          c10d::Backend& backend, const auto& own) mutable {
        return backend.reduce_scatter(outputs, inputs, own);
      });
}

WorkPtr CollectiveBackend::_reduce_scatter_base(
    at::Tensor& output,
    at::Tensor& input,
    const c10d::ReduceScatterOptions& options) {
  return collectives_.run(
      output.device().type(),
      c10d::OpType::_REDUCE_SCATTER_BASE,
      options,
      [&](const auto& checks) {
        checks.reduceScatterTensors({output}, {input});
      },
      [output = output, input = input](
          c10d::Backend& backend, const auto& own) mutable {
        return backend._reduce_scatter_base(output, input, own);
      });
}

WorkPtr CollectiveBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs,
    Tensors& inputs,
    const c10d::ReduceScatterOptions& options) {
  return collectives_.run(
      deviceOf(outputs),
      // A separate OpType came with torch 2.12 or later.
      c10d::OpType::_REDUCE_SCATTER_BASE,
      options,
      [&](const auto& checks) { checks.reduceScatterTensors(outputs, inputs); },
      [outputs = outputs, inputs = inputs](
          c10d::Backend& backend, const auto& own) mutable {
        return backend.reduce_scatter_tensor_coalesced(outputs, inputs, own);
      });
}

WorkPtr CollectiveBackend::alltoall_base(
    at::Tensor& output,
    at::Tensor& input,
    std::vector<int64_t>& outputSplits,
    std::vector<int64_t>& inputSplits,
    const c10d::AllToAllOptions& options) {
  return collectives_.run(
      input.device().type(),
      c10d::OpType::ALLTOALL_BASE,
      options,
      [&](const auto& checks) {
        checks.alltoallBase(output, input, outputSplits, inputSplits);
      },
      [output = output,
       input = input,
       outputSplits = outputSplits,
       inputSplits = inputSplits](
          c10d::Backend& backend, const auto& own) mutable {
        return backend.alltoall_base(
            output, input, outputSplits, inputSplits, own);
      });
}

WorkPtr CollectiveBackend::alltoall(
    Tensors& outputs,
    Tensors& inputs,
    const c10d::AllToAllOptions& options) {
  return collectives_.run(
      deviceOf(inputs),
      c10d::OpType::ALLTOALL,
      options,
      [&](const auto& checks) { checks.alltoall(outputs, inputs); },
      [outputs = outputs, inputs = inputs](
          c10d::Backend& backend, const auto& own) mutable {
        return backend.alltoall(outputs, inputs, own);
      });
}

WorkPtr CollectiveBackend::barrier(const c10d::BarrierOptions& options) {
  return collectives_.run(
      options.device ? options.device->type() : c10::DeviceType::CPU,
      c10d::OpType::BARRIER,
      options,
      [](const auto&) {},
      [](c10d::Backend& backend, const auto& own) {
        return backend.barrier(own);
      });
}

void CollectiveBackend::monitoredBarrier(
    const c10d::BarrierOptions& options,
    bool waitAllRanks) {
  collectives_.monitoredBarrier(options.timeout, waitAllRanks);
}

} // namespace dlslime
