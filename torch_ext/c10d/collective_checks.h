#pragma once

#include <torch/csrc/distributed/c10d/Types.hpp>

#include <vector>

namespace dlslime {

// What Gloo refuses at the call, for collectives that must wait until Gloo can
// be asked: an error must not come later for the group's first collective than
// for others. The order and texts are Gloo's. Each throws RuntimeError, as Gloo
// does.
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
  void reduceScatterTensors(const Tensors& outputs, const Tensors& inputs)
      const;
  void alltoall(const Tensors& outputs, const Tensors& inputs) const;
  // What Gloo finds only at the wait before torch 2.15, when the ranks don't
  // agree about the next collective any more.
  void splits(
      const at::Tensor& output,
      const at::Tensor& input,
      const std::vector<int64_t>& outputSplits,
      const std::vector<int64_t>& inputSplits) const;

 private:
  const int rank_, size_;
};

} // namespace dlslime
