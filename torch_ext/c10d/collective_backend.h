#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "torch_ext/c10d/collective_runner.h"

namespace dlslime {

// The collectives of a backend, as torch calls them.
class CollectiveBackend : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  WorkPtr broadcast(Tensors&, const c10d::BroadcastOptions&) override;
  WorkPtr allreduce(Tensors&, const c10d::AllreduceOptions&) override;
  WorkPtr allreduce_sparse(Tensors&, const c10d::AllreduceOptions&) override;
  WorkPtr allreduce_coalesced(Tensors&, const c10d::AllreduceCoalescedOptions&)
      override;
  WorkPtr reduce(Tensors&, const c10d::ReduceOptions&) override;
  WorkPtr allgather(
      std::vector<Tensors>&,
      Tensors&,
      const c10d::AllgatherOptions&) override;
  WorkPtr _allgather_base(
      at::Tensor&,
      at::Tensor&,
      const c10d::AllgatherOptions&) override;
  WorkPtr allgather_coalesced(
      std::vector<Tensors>&,
      Tensors&,
      const c10d::AllgatherOptions&) override;
  WorkPtr allgather_into_tensor_coalesced(
      Tensors&,
      Tensors&,
      const c10d::AllgatherOptions&) override;
  WorkPtr gather(std::vector<Tensors>&, Tensors&, const c10d::GatherOptions&)
      override;
  WorkPtr scatter(Tensors&, std::vector<Tensors>&, const c10d::ScatterOptions&)
      override;
  WorkPtr reduce_scatter(
      Tensors&,
      std::vector<Tensors>&,
      const c10d::ReduceScatterOptions&) override;
  WorkPtr _reduce_scatter_base(
      at::Tensor&,
      at::Tensor&,
      const c10d::ReduceScatterOptions&) override;
  WorkPtr reduce_scatter_tensor_coalesced(
      Tensors&,
      Tensors&,
      const c10d::ReduceScatterOptions&) override;
  WorkPtr alltoall_base(
      at::Tensor&,
      at::Tensor&,
      std::vector<int64_t>&,
      std::vector<int64_t>&,
      const c10d::AllToAllOptions&) override;
  WorkPtr alltoall(Tensors&, Tensors&, const c10d::AllToAllOptions&) override;
  WorkPtr barrier(const c10d::BarrierOptions&) override;
  void monitoredBarrier(const c10d::BarrierOptions&, bool) override;
  // startCoalescing() and endCoalescing() enclose collectives only: torch gives
  // each send and receive a separate work, because supportsCoalescing() is
  // false.
  void startCoalescing() override {
    collectives_.coalescing().start();
  }
  WorkPtr endCoalescing() override {
    return collectives_.coalescing().end();
  }
  void enableCollectivesTiming() override {}
  // The sequence number counts collectives only, because ranks may differ in
  // the number of sends and receives.
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override {
    return collectives_.sequence();
  }

 protected:
  CollectiveBackend(
      int rank,
      int size,
      std::shared_ptr<GroupHandle> handle,
      MakeCollectives makeCollectives)
      : Backend(rank, size),
        collectives_(
            rank,
            size,
            std::move(handle),
            std::move(makeCollectives)) {}

  CollectiveRunner collectives_;
};

} // namespace dlslime
