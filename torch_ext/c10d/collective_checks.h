#pragma once

#include <torch/csrc/distributed/c10d/Types.hpp>

#include <vector>

namespace dlslime {

// Arguments that Gloo refuses, of CPU tensors. Gloo itself can't be asked
// before the group's first collective has met the other ranks, and an error
// must not come later for that one. Each throws RuntimeError with Gloo's text,
// so that programs find what they know.
class CollectiveChecks {
 public:
  using Tensors = std::vector<at::Tensor>;
  using Lists = std::vector<Tensors>;

  // Of a group.
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
  // Gloo reads beyond the shape of a tensor with fewer dimensions than the
  // output has.
  void reduceScatterTensors(const Tensors& outputs, const Tensors& inputs)
      const;
  void alltoall(const Tensors& outputs, const Tensors& inputs) const;
  // Before torch 2.15 Gloo refuses such splits only at the wait: the ranks
  // don't agree about the next collective then.
  void alltoallBase(
      const at::Tensor& output,
      const at::Tensor& input,
      const std::vector<int64_t>& outputSplits,
      const std::vector<int64_t>& inputSplits) const;

 private:
  const int rank_, size_;
};

} // namespace dlslime
