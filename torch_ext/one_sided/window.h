#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

// Windows need torch 2.14 or later.
#ifdef C10D_BACKEND_HAS_WINDOW

#include <memory>
#include <mutex>
#include <vector>

#include "engine/engine.h"
#include "torch_ext/one_sided/window_part.h"
#include "torch_ext/support/waiting.h"

namespace dlslime {

// A tensor on each rank, open to puts of all ranks of a group. A signal is seen
// after all earlier puts of the sender. Any thread may call a function that is
// not collective.
class Window final : public c10d::Window {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  // `number` tells the windows of a group apart, and is equal on all ranks.
  Window(std::shared_ptr<GroupHandle> handle, uint32_t number)
      : handle_(std::move(handle)), number_(number) {}
  ~Window() override;

  // Collective. Takes a contiguous CPU tensor, of the same dtype on all ranks.
  void tensor_register(const at::Tensor& tensor, bool owning) override;
  // Collective. After the return, no transfer touches the tensor any more.
  void tensor_deregister() override;

  // Takes an offset in elements of the window's dtype. Raises ValueError
  // outside of the peer's tensor.
  WorkPtr put(
      const at::Tensor& tensor,
      int64_t dstRank,
      int64_t targetOffsetNelems,
      bool asyncOp,
      const c10d::PutOptions& opts) override;
  // Waits for this rank's earlier puts to `peerRank`, then sends the signal.
  WorkPtr signal(
      int64_t peerRank,
      bool asyncOp,
      const c10d::SignalOptions& opts) override;
  WorkPtr wait_signal(
      int64_t peerRank,
      bool asyncOp,
      const c10d::WaitSignalOptions& opts) override;
  // Returns the tensor of `rank` itself, not a copy: writes are seen on both
  // ranks, and the mapping outlives the window. Raises NotImplementedError
  // unless `rank` is the caller's, or a process of the same host with a tensor
  // from allocate_tensor().
  at::Tensor map_remote_tensor(int64_t rank) override;
  c10d::WindowAttr get_attr(int64_t peerRank) override;

 private:
  struct Remote {
    std::shared_ptr<const RegionHandle> handle;
    WindowPart part;
  };
  static Remote remoteOf(WindowPart part, at::ScalarType dtype);
  void requireUsable() const; // throws DistBackendError
  int checked(int64_t rank) const;
  milliseconds limitOf(milliseconds wanted) const;
  // Sends `mine` to every rank, and returns the bytes of all ranks, by rank.
  std::vector<Bytes> exchange(const Bytes& mine) const;
  void post(const OperationPtr& operation) const;
  OperationPtr postSignal(Operation::Kind kind, int rank) const;
  WorkPtr finish(
      const OperationPtr& operation,
      std::vector<at::Tensor> tensors,
      bool asyncOp,
      milliseconds limit) const;

  const std::shared_ptr<GroupHandle> handle_;
  const uint32_t number_;

  std::mutex mutex_;
  // mutex_ guards all members below.
  at::Tensor tensor_;
  RegionPtr region_; // null: nothing is registered
  std::vector<Remote> remotes_; // indexed by rank
  // Puts by target rank, since the last signal to the rank.
  std::vector<std::vector<TransferPtr>> puts_;
};

} // namespace dlslime

#endif
