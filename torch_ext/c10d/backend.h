#pragma once

#include <torch/version.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <memory>

#include "engine/engine.h"
#include "torch_ext/c10d/coalescing.h"
#include "torch_ext/c10d/collective_work.h"
#include "torch_ext/c10d/collectives.h"
#include "torch_ext/c10d/monitored_barrier.h"
#include "torch_ext/c10d/splits.h"
#include "torch_ext/c10d/torch_carrier.h"
#include "torch_ext/c10d/work.h"
#include "torch_ext/support/checked_call.h"
#include "torch_ext/support/options.h"
#include "torch_ext/support/shared_tensors.h"

// suspend() and resume() were added in torch 2.12, without a macro of torch's
// own.
#define DLSLIME_TORCH_HAS_SUSPEND \
  (TORCH_VERSION_MAJOR > 2 ||     \
   (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 12))

namespace dlslime {

// Backend of a process group: the process's engine carries sends and receives,
// torch's own backends carry collectives. Any thread may call.
class DlslimeBackend final : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  struct Setup {
    c10::intrusive_ptr<c10d::Store> store;
    int rank;
    int size;
    std::string name;
    c10::intrusive_ptr<BackendOptions> options;
    MakePairGroup makePairGroup;
    MakeCollectives makeCollectives;
    MakeChild makeChild;
  };
  explicit DlslimeBackend(Setup setup);
  ~DlslimeBackend() override;

  const std::string getBackendName() const override {
    return kBackendName;
  }
  // Returns a copy, because torch writes the options of a group to be split off
  // into the result.
  c10::intrusive_ptr<Options> getBackendOptions() override;
  const c10::intrusive_ptr<BackendOptions>& options() const {
    return options_;
  }

  // split() makes a group of some of the ranks, and merge() a group of the
  // ranks of several groups.
  bool supportsSplitting() const override {
    return true;
  }
  c10::intrusive_ptr<Backend> split(
      const c10::intrusive_ptr<c10d::Store>& store,
      const std::vector<int>& ranks,
      const c10::intrusive_ptr<Options>& options) override;
  c10::intrusive_ptr<Backend> merge(
      const c10::intrusive_ptr<c10d::Store>& store,
      const c10::intrusive_ptr<Options>& options,
      const int& rank,
      const int& size) override;

  // send(), recv() and recvAnysource() take ranks of the group, and tags from 0
  // to 2^31-1. Bad arguments raise ValueError before anything is queued.
  WorkPtr send(Tensors& tensors, int dstRank, int tag) override;
  WorkPtr recv(Tensors& tensors, int srcRank, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;

  // Ends all works with an error, pending works as well as future works.
  void abort() override;
  // Lets sends finish for up to DLSLIME_LINGER_MS, then leaves the group.
  // Idempotent; not collective.
  void shutdown() override;
  void setTimeout(std::chrono::milliseconds timeout) override;
  c10d::ErrorType getError() override;
  void setGroupUid(const std::string& uid) override;
  void enableCollectivesTiming() override {}
  // The sequence number counts collectives only, because ranks may differ in
  // the number of sends and receives.
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override {
    return sequence_.load();
  }

  // report(), explain(), connections() and groups() serve
  // dlslime_backend.stats() and explain().
  std::vector<PeerReport> report() {
    checkedCall(refuseInForkedChild); // a child may inherit a held lock
    return handle_->engine->report(*handle_->group);
  }
  PeerReport explain(int rank);
  size_t connections() {
    checkedCall(refuseInForkedChild);
    return handle_->engine->connections();
  }
  size_t groups() {
    checkedCall(refuseInForkedChild);
    return handle_->engine->groups();
  }
  // Returns the group's handle, for transfers outside of torch's interface with
  // any rank.
  const std::shared_ptr<GroupHandle>& handle() const {
    return handle_;
  }
  void checkPeer(const char* what, int peer) const;
  std::string listenerName() const {
    return handle_->engine->socketName();
  }

  // CPU tensors can be allocated in memory that processes of this host map
  // (c10d::Window). torch passes only the device index, which is negative for a
  // CPU, but also for "cuda" without an index.
  bool supportsTensorAlloc(c10::DeviceIndex device) override {
    return device < 0;
  }
  at::Tensor allocateTensor(long count, at::TensorOptions options) override {
    return allocateShared(count, options);
  }

  // --- c10d/backend_collectives.cpp
  // -------------------------------------------
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
    coalescing_.start();
  }
  WorkPtr endCoalescing() override {
    return coalescing_.end();
  }

#if DLSLIME_TORCH_HAS_SUSPEND // --- backend_memory.cpp --------------------
  // Gives memory back until resume(): idle buffers and registrations of the
  // connections (several groups may share a connection), idle sharing of GPU
  // memory on this host, and NCCL's memory for collectives. Nothing may be
  // pending, and any use of a suspended group raises. Not collective for sends
  // and receives.
  void suspend() override;
  void resume() override;
  // Returns "suspend" (bytes that suspend() gives back), "suspended" (0 or 1),
  // "persist" (bytes that stay) and "total", including NCCL's numbers.
  std::unordered_map<std::string, uint64_t> getMemoryStats() override;
#endif

#ifdef C10D_BACKEND_HAS_WINDOW // --- window.cpp ----------------------------
  bool supportsWindow() const override {
    return true;
  }
  // Collective: all ranks make the windows of a group in the same order.
  c10::intrusive_ptr<c10d::Window> new_window(
      const std::optional<at::Tensor>& tensor) override;
#endif

 private:
  WorkPtr post(
      Operation::Kind kind,
      Tensors& tensors,
      int peer,
      int tag,
      c10d::OpType type);
  void requireCollectives() const;
  std::chrono::milliseconds limitOf(std::chrono::milliseconds timeout) const;
  template <typename Settings, typename Check, typename Call>
  WorkPtr runOn(
      c10::DeviceType device,
      c10d::OpType type,
      const Settings& options,
      const Check& check,
      Call call);

  const c10::intrusive_ptr<BackendOptions> options_;
  const std::shared_ptr<GroupHandle> handle_;
  const std::shared_ptr<LiveCollectives> liveCollectives_ =
      std::make_shared<LiveCollectives>();
  const std::shared_ptr<Collectives> collectives_;
  MonitoredBarrier monitoredBarrier_;
  Coalescing coalescing_;
  Splits splits_;
  std::atomic<uint64_t> sequence_{0};
#ifdef C10D_BACKEND_HAS_WINDOW
  std::atomic<uint32_t> windows_{0}; // number of windows made
#endif
  std::atomic<bool> left_{false};
  std::atomic<bool> aborted_{false};
};

} // namespace dlslime
