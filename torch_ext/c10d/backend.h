#pragma once

#include <torch/version.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <memory>

#include "engine/engine.h"
#include "torch_ext/c10d/collective_backend.h"
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
class DlslimeBackend final : public CollectiveBackend {
 public:
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
  DlslimeBackend(Setup setup, const std::shared_ptr<GroupHandle>& handle);

  const c10::intrusive_ptr<BackendOptions> options_;
  const std::shared_ptr<GroupHandle> handle_;
  Splits splits_;
#ifdef C10D_BACKEND_HAS_WINDOW
  std::atomic<uint32_t> windows_{0}; // number of windows made
#endif
  std::atomic<bool> left_{false};
};

} // namespace dlslime
