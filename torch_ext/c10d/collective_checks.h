#pragma once

#include <torch/csrc/distributed/c10d/Types.hpp>

#include <vector>

namespace dlslime {

// Checks arguments of collectives of CPU tensors as Gloo does. Gloo exists only
// once the group's first collective has met all ranks, which is too late for an
// error at the call. Each check throws RuntimeError with Gloo's text, so that
// programs find the text they know.
class CollectiveChecks {
 public:
  using Tensors = std::vector<at::Tensor>;
  using Lists = std::vector<Tensors>;

  CollectiveChecks(int rank, int size) : rank_(rank), size_(size) {}

  void broadcast(const Tensors& tensors, const c10d::BroadcastOptions& options)
      const;
  void allreduce(const Tensors& tensors, const c10d::AllreduceOptions& options)
      const;
  void allreduceCoalesced(const Tensors& tensors) const;
  void reduce(const Tensors& tensors, const c10d::ReduceOptions& options) const;
  void allgather(const Lists& outputs, const Tensors& inputs) const;
  void allgatherBase(const at::Tensor& output, const at::Tensor& input) const;
  void allgatherCoalesced(const Lists& outputs, const Tensors& inputs) const;
  void allgatherIntoTensorCoalesced(
      const Tensors& outputs,
      const Tensors& inputs) const;
  void gather(
      const Lists& outputs,
      const Tensors& inputs,
      const c10d::GatherOptions& options) const;
  void scatter(
      const Tensors& outputs,
      const Lists& inputs,
      const c10d::ScatterOptions& options) const;
  void reduceScatter(const Tensors& outputs, const Lists& inputs) const;
  // Checks the shapes because Gloo reads past the end of the input's shape if
  // the output has more dimensions.
  void reduceScatterTensors(const Tensors& outputs, const Tensors& inputs)
      const;
  void alltoall(const Tensors& outputs, const Tensors& inputs) const;
  // Checks the splits because Gloo before torch 2.15 refuses wrong splits only
  // in wait(), and the ranks then disagree about the next collective.
  void alltoallBase(
      const at::Tensor& output,
      const at::Tensor& input,
      const std::vector<int64_t>& outputSplits,
      const std::vector<int64_t>& inputSplits) const;

 private:
  const int rank_, size_;
};

} // namespace dlslime
