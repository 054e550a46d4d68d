#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

// torch 2.14 and later.
#ifdef C10D_BACKEND_HAS_WINDOW

#include <memory>
#include <mutex>
#include <vector>

#include "engine/one_sided/transfer.h"
#include "torch_ext/one_sided/window_part.h"
#include "torch_ext/support/waiting.h"

namespace dlslime {

// A tensor of each rank that all ranks of a group write to. A signal is seen
// after everything that its sender had put before it. Any thread, but for what
// is collective.
class Window final : public c10d::Window {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  // `number` tells the windows of a group apart; the same on all ranks.
  Window(std::shared_ptr<GroupHandle> handle, uint32_t number)
      : handle_(std::move(handle)), number_(number) {}
  ~Window() override;

  // Collective. A CPU tensor, contiguous, of the same dtype on all ranks.
  void tensor_register(const at::Tensor& tensor, bool owning) override;
  // Collective: when it returns, nobody touches the tensor any more.
  void tensor_deregister() override;

  // The offset is in elements of the window's dtype. ValueError: outside of
  // the peer's tensor.
  WorkPtr put(
      const at::Tensor& tensor,
      int64_t dstRank,
      int64_t targetOffsetNelems,
      bool asyncOp,
      const c10d::PutOptions& opts) override;
  // Waits for what was put to this rank before.
  WorkPtr signal(
      int64_t peerRank,
      bool asyncOp,
      const c10d::SignalOptions& opts) override;
  WorkPtr wait_signal(
      int64_t peerRank,
      bool asyncOp,
      const c10d::WaitSignalOptions& opts) override;
  // As the tensor is at its rank, and not a copy: it is seen there what is
  // written to it here. It stays after the window is gone. Of another rank only
  // if that is a process of this host, and has it of allocate_tensor();
  // NotImplementedError.
  at::Tensor map_remote_tensor(int64_t rank) override;
  c10d::WindowAttr get_attr(int64_t peerRank) override;

 private:
  struct Remote {
    std::shared_ptr<const RegionHandle> handle;
    WindowPart part;
  };
  static Remote remoteOf(WindowPart part, at::ScalarType dtype);
  void requireUsable() const; // DistBackendError
  int checked(int64_t rank) const;
  milliseconds limitOf(milliseconds wanted) const;
  // Gives each other rank these bytes, and returns theirs, by rank.
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
  // Guarded by mutex_:
  at::Tensor tensor_;
  RegionPtr region_; // null: nothing is registered
  std::vector<Remote> remotes_; // by rank
  std::vector<std::vector<TransferPtr>> puts_; // to each rank, since its signal
};

} // namespace dlslime

#endif
