// Collectives, each passed on to torch's own backend for the device.
#include <algorithm>

#include "torch_ext/c10d/backend.h"
#include "torch_ext/c10d/collective_checks.h"
#include "torch_ext/c10d/collective_work.h"
#include "torch_ext/support/checked_call.h"
#include "torch_ext/support/python_end.h"
#include "torch_ext/support/timeouts.h"

namespace dlslime {

using WorkPtr = DlslimeBackend::WorkPtr;

// Throws if collectives cannot be called. Comes before any call that takes a
// lock: a forked child may inherit a held lock.
void DlslimeBackend::requireCollectives() const {
  checkedCall([&] { handle_->requireUsable(); });
  TORCH_CHECK_WITH(
      DistBackendError,
      !aborted_.load(),
      "dlslime: the process group was aborted");
}

std::chrono::milliseconds DlslimeBackend::limitOf(
    std::chrono::milliseconds timeout) const {
  return timeout == c10d::kUnsetTimeout
      ? handle_->timeout.load()
      : checkedTimeout("a collective's", timeout);
}

namespace {

c10::DeviceType deviceOf(const DlslimeBackend::Tensors& tensors) {
  return tensors.empty() ? c10::DeviceType::CPU : tensors[0].device().type();
}

// Returns the options with the time-out shortened by the time since `begun`, if
// longer than 100 ms.
template <typename Settings>
Settings
within(std::chrono::milliseconds limit, TimePoint begun, Settings options) {
  const auto taken = std::chrono::duration_cast<std::chrono::milliseconds>(
      Clock::now() - begun);
  if (taken > std::chrono::milliseconds(100)) {
    options.timeout = std::max(limit - taken, std::chrono::milliseconds(1));
  }
  return options;
}

// Begins a collective of CPU tensors. Throws if the collective is refused at
// once.
void beginNow(
    Collectives& collectives,
    const c10::intrusive_ptr<CollectiveWork>& work,
    std::chrono::milliseconds limit,
    Collectives::Begin begin) {
  try {
    collectives.begin(c10::DeviceType::CPU, limit, std::move(begin), [work] {
      work->endIfLate();
    });
  } catch (...) { // the work never begins
    work->begin(std::current_exception(), {});
    throw;
  }
  if (const auto refusal = work->refusal()) {
    std::rethrow_exception(refusal);
  }
}

} // namespace

// Passes the backend and the options to `call`, perhaps later and on a
// different thread, so `call` holds the arguments by value. Setting up the
// backend counts against the time-out. A collective refused by `check` does not
// begin.
template <typename Settings, typename Check, typename Call>
WorkPtr DlslimeBackend::runOn(
    c10::DeviceType device,
    c10d::OpType type,
    const Settings& options,
    const Check& check,
    Call call) {
  const StaysWhenPythonEnds stays;
  const auto limit = limitOf(options.timeout);
  requireCollectives();
  if (device == c10::DeviceType::CPU) {
    check(CollectiveChecks(getRank(), getSize()));
  }
  const auto number = sequence_.fetch_add(1) + 1;
  if (device != c10::DeviceType::CPU) {
    const auto begun = Clock::now();
    const auto backend = collectives_->await(device, limit);
    const auto work = call(*backend, within(limit, begun, options));
    coalescing_.note(work);
    return work;
  }
  const auto work = c10::make_intrusive<CollectiveWork>(CollectiveWork::Setup{
      handle_, liveCollectives_, collectives_, type, number, limit});
  const auto ask = [work, options, call = std::move(call)](
                       const Collectives::BackendPtr& backend,
                       const std::exception_ptr& problem) mutable {
    return work->begin(problem, [&](const auto& left) {
      auto own = options;
      own.timeout = left.value_or(options.timeout);
      return call(*backend, own);
    });
  };
  try {
    beginNow(*collectives_, work, limit, ask);
  } catch (...) {
    sequence_.fetch_sub(1); // no rank counts a refused call
    throw;
  }
  if (aborted_.load()) { // aborted during the call
    work->abort();
  }
  coalescing_.note(work);
  return work;
}

WorkPtr DlslimeBackend::broadcast(
    Tensors& tensors,
    const c10d::BroadcastOptions& options) {
  return runOn(
      deviceOf(tensors),
      c10d::OpType::BROADCAST,
      options,
      [&](const auto& checks) { checks.broadcast(tensors, options); },
      [tensors = tensors](c10d::Backend& backend, const auto& own) mutable {
        return backend.broadcast(tensors, own);
      });
}

WorkPtr DlslimeBackend::allreduce(
    Tensors& tensors,
    const c10d::AllreduceOptions& options) {
  return runOn(
      deviceOf(tensors),
      c10d::OpType::ALLREDUCE,
      options,
      [&](const auto& checks) { checks.allreduce(tensors, options); },
      [tensors = tensors](c10d::Backend& backend, const auto& own) mutable {
        return backend.allreduce(tensors, own);
      });
}

WorkPtr DlslimeBackend::allreduce_sparse(
    Tensors& tensors,
    const c10d::AllreduceOptions& options) {
  return runOn(
      deviceOf(tensors),
      c10d::OpType::_ALLREDUCE_SPARSE,
      options,
      [&](const auto& checks) { checks.allreduce(tensors, options); },
      [tensors = tensors](c10d::Backend& backend, const auto& own) mutable {
        return backend.allreduce(tensors, own);
      });
}

WorkPtr DlslimeBackend::allreduce_coalesced(
    Tensors& tensors,
    const c10d::AllreduceCoalescedOptions& options) {
  return runOn(
      deviceOf(tensors),
      c10d::OpType::ALLREDUCE_COALESCED,
      options,
      [&](const auto& checks) { checks.allreduceCoalesced(tensors); },
      [tensors = tensors](c10d::Backend& backend, const auto& own) mutable {
        return backend.allreduce_coalesced(tensors, own);
      });
}

WorkPtr DlslimeBackend::reduce(
    Tensors& tensors,
    const c10d::ReduceOptions& options) {
  return runOn(
      deviceOf(tensors),
      c10d::OpType::REDUCE,
      options,
      [&](const auto& checks) { checks.reduce(tensors, options); },
      [tensors = tensors](c10d::Backend& backend, const auto& own) mutable {
        return backend.reduce(tensors, own);
      });
}

WorkPtr DlslimeBackend::allgather(
    std::vector<Tensors>& outputs,
    Tensors& inputs,
    const c10d::AllgatherOptions& options) {
  return runOn(
      deviceOf(inputs),
      c10d::OpType::ALLGATHER,
      options,
      [&](const auto& checks) { checks.allgather(outputs, inputs); },
      [outputs = outputs, inputs = inputs](
          c10d::Backend& backend, const auto& own) mutable {
        return backend.allgather(outputs, inputs, own);
      });
}

WorkPtr DlslimeBackend::_allgather_base(
    at::Tensor& output,
    at::Tensor& input,
    const c10d::AllgatherOptions& options) {
  return runOn(
      input.device().type(),
      c10d::OpType::_ALLGATHER_BASE,
      options,
      [&](const auto& checks) { checks.allgatherBase(output, input); },
      [output = output, input = input](
          c10d::Backend& backend, const auto& own) mutable {
        return backend._allgather_base(output, input, own);
      });
}

WorkPtr DlslimeBackend::allgather_coalesced(
    std::vector<Tensors>& outputs,
    Tensors& inputs,
    const c10d::AllgatherOptions& options) {
  return runOn(
      deviceOf(inputs),
      c10d::OpType::ALLGATHER_COALESCED,
      options,
      [&](const auto& checks) { checks.allgatherCoalesced(outputs, inputs); },
      [outputs = outputs, inputs = inputs](
          c10d::Backend& backend, const auto& own) mutable {
        return backend.allgather_coalesced(outputs, inputs, own);
      });
}

WorkPtr DlslimeBackend::allgather_into_tensor_coalesced(
    Tensors& outputs,
    Tensors& inputs,
    const c10d::AllgatherOptions& options) {
  return runOn(
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

WorkPtr DlslimeBackend::gather(
    std::vector<Tensors>& outputs,
    Tensors& inputs,
    const c10d::GatherOptions& options) {
  return runOn(
      deviceOf(inputs),
      c10d::OpType::GATHER,
      options,
      [&](const auto& checks) { checks.gather(outputs, inputs, options); },
      [outputs = outputs, inputs = inputs](
          c10d::Backend& backend, const auto& own) mutable {
        return backend.gather(outputs, inputs, own);
      });
}

WorkPtr DlslimeBackend::scatter(
    Tensors& outputs,
    std::vector<Tensors>& inputs,
    const c10d::ScatterOptions& options) {
  return runOn(
      deviceOf(outputs),
      c10d::OpType::SCATTER,
      options,
      [&](const auto& checks) { checks.scatter(outputs, inputs, options); },
      [outputs = outputs, inputs = inputs](
          c10d::Backend& backend, const auto& own) mutable {
        return backend.scatter(outputs, inputs, own);
      });
}

WorkPtr DlslimeBackend::reduce_scatter(
    Tensors& outputs,
    std::vector<Tensors>& inputs,
    const c10d::ReduceScatterOptions& options) {
  return runOn(
      deviceOf(outputs),
      c10d::OpType::REDUCE_SCATTER,
      options,
      [&](const auto& checks) { checks.reduceScatter(outputs, inputs); },
      [outputs = outputs, inputs = inputs](
          c10d::Backend& backend, const auto& own) mutable {
        return backend.reduce_scatter(outputs, inputs, own);
      });
}

WorkPtr DlslimeBackend::_reduce_scatter_base(
    at::Tensor& output,
    at::Tensor& input,
    const c10d::ReduceScatterOptions& options) {
  return runOn(
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

WorkPtr DlslimeBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs,
    Tensors& inputs,
    const c10d::ReduceScatterOptions& options) {
  return runOn(
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

WorkPtr DlslimeBackend::alltoall_base(
    at::Tensor& output,
    at::Tensor& input,
    std::vector<int64_t>& outputSplits,
    std::vector<int64_t>& inputSplits,
    const c10d::AllToAllOptions& options) {
  return runOn(
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

WorkPtr DlslimeBackend::alltoall(
    Tensors& outputs,
    Tensors& inputs,
    const c10d::AllToAllOptions& options) {
  return runOn(
      deviceOf(inputs),
      c10d::OpType::ALLTOALL,
      options,
      [&](const auto& checks) { checks.alltoall(outputs, inputs); },
      [outputs = outputs, inputs = inputs](
          c10d::Backend& backend, const auto& own) mutable {
        return backend.alltoall(outputs, inputs, own);
      });
}

WorkPtr DlslimeBackend::barrier(const c10d::BarrierOptions& options) {
  return runOn(
      options.device ? options.device->type() : c10::DeviceType::CPU,
      c10d::OpType::BARRIER,
      options,
      [](const auto&) {},
      [](c10d::Backend& backend, const auto& own) {
        return backend.barrier(own);
      });
}

void DlslimeBackend::monitoredBarrier(
    const c10d::BarrierOptions& options,
    bool waitAllRanks) {
  const auto limit = limitOf(options.timeout);
  requireCollectives();
  sequence_.fetch_add(1);
  monitoredBarrier_.run(limit, waitAllRanks);
}

} // namespace dlslime
