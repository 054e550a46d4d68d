#include "torch_ext/one_sided/window.h"

#ifdef C10D_BACKEND_HAS_WINDOW

#include "base/fork_guard.h"
#include "base/memory/shared_descriptor.h"
#include "base/memory/shared_pages.h"
#include "torch_ext/c10d/backend.h"
#include "torch_ext/c10d/work.h"
#include "torch_ext/support/checked_call.h"
#include "torch_ext/support/gil.h"
#include "torch_ext/support/tensor_view.h"

namespace dlslime {

namespace {

// Tags from 2^31 up are the backend's own (docs/protocol.md).
constexpr uint32_t kExchangeTag = 0x90000000, kSignalTag = 0xa0000000;
constexpr uint32_t kMostWindows = 0x10000000;
constexpr size_t kMostPartBytes = 2048;

// Wraps a tensor in a region, which keeps the storage until the last transfer
// is over. The region is in no table, because no peer gets the handle, and has
// no accelerator, because windows are in processors' memory.
RegionPtr sourceOf(const at::Tensor& tensor, const Region& ofWindow) {
  const auto view = bytesOf(tensor);
  RegionHandle handle;
  handle.instance = ofWindow.handle().instance; // of this process
  handle.address = reinterpret_cast<uint64_t>(view.data);
  handle.size = view.size;
  handle.name = "a tensor that is put";
  if (view.mayFault) { // perhaps a file that a peer maps as well
    handle.pages = sharedPagesOf(view.data, view.size);
  }
  return std::make_shared<Region>(
      handle, view, sharedWithPython(c10::Storage(tensor.storage())));
}

} // namespace

Window::~Window() {
  const WithoutGil others;
  if (region_ && !inForkedChild()) {
    // If a peer still writes at the deadline, the region stays registered and
    // keeps the memory alive.
    try {
      handle_->engine->deregister(
          region_, deadlineAfter(handle_->timeout.load()));
    } catch (const Error&) {
      return;
    }
  }
}

void Window::requireUsable() const {
  checkedCall([&] { handle_->requireUsable(); });
}

int Window::checked(int64_t rank) const {
  const int size = handle_->size();
  TORCH_CHECK_VALUE(
      rank >= 0 && rank < size,
      "dlslime: a window has ranks 0 to ",
      size - 1,
      ", and not ",
      rank);
  return static_cast<int>(rank);
}

milliseconds Window::limitOf(milliseconds wanted) const {
  return wanted == c10d::kUnsetTimeout ? handle_->timeout.load() : wanted;
}

void Window::post(const OperationPtr& operation) const {
  auto& engine = *handle_->engine;
  auto& group = *handle_->group;
  operation->kind() == Operation::Kind::kReceive
      ? engine.receive(group, operation)
      : engine.send(group, operation);
}

OperationPtr Window::postSignal(Operation::Kind kind, int rank) const {
  auto operation = std::make_shared<NoteOperation>(
      kind, rank, kSignalTag + number_, std::make_shared<Bytes>(1));
  post(operation);
  return operation;
}

Window::WorkPtr Window::finish(
    const OperationPtr& operation,
    std::vector<at::Tensor> tensors,
    bool asyncOp,
    milliseconds limit) const {
  auto work = c10::make_intrusive<P2PWork>(
      handle_, operation, c10d::OpType::UNKNOWN, std::move(tensors), nullptr);
  if (!asyncOp) {
    const WithoutGil others;
    // Python's handlers run later: an exception in the wait would leave a
    // signal of the window uncounted.
    checkedCall(
        [&] { waitOrTakeBack(*handle_, operation, limit, Signals::kLeave); });
    if (!operation->status().ok()) {
      std::rethrow_exception(makeException(operation->status()));
    }
  }
  return work;
}

std::vector<Bytes> Window::exchange(const Bytes& mine) const {
  const int size = handle_->size(), self = handle_->rank();
  std::vector<Bytes> all(static_cast<size_t>(size), mine);
  std::vector<std::shared_ptr<Bytes>> incoming(static_cast<size_t>(size));
  std::vector<OperationPtr> operations;
  const auto outgoing = std::make_shared<Bytes>(mine);
  for (int rank = 0; rank < size; ++rank) {
    if (rank == self) {
      continue;
    }
    auto& buffer = incoming[static_cast<size_t>(rank)];
    buffer = std::make_shared<Bytes>(kMostPartBytes);
    operations.push_back(std::make_shared<NoteOperation>(
        Operation::Kind::kReceive, rank, kExchangeTag + number_, buffer));
    post(operations.back());
    operations.push_back(std::make_shared<NoteOperation>(
        Operation::Kind::kSend, rank, kExchangeTag + number_, outgoing));
    post(operations.back());
  }
  const auto limit = handle_->timeout.load();
  for (const auto& operation : operations) {
    waitOrTakeBack(*handle_, operation, limit, Signals::kLeave);
    if (!operation->status().ok()) {
      throw Error(operation->status());
    }
    if (operation->kind() == Operation::Kind::kReceive) {
      const auto rank = static_cast<size_t>(operation->peer());
      incoming[rank]->resize(operation->bytes());
      all[rank] = *incoming[rank];
    }
  }
  return all;
}

Window::Remote Window::remoteOf(WindowPart part, at::ScalarType dtype) {
  if (part.dtype != dtype) {
    throw Error(
        ErrorCode::kInvalidArgument,
        "the tensors of a window are of one dtype, but " +
            part.region.describe() + " is of " + c10::toString(part.dtype) +
            ", and this rank's of " + c10::toString(dtype));
  }
  auto handle = std::make_shared<const RegionHandle>(part.region);
  return {std::move(handle), std::move(part)};
}

void Window::tensor_register(const at::Tensor& tensor, bool owning) {
  checkedTensor("window", {tensor});
  requireUsable();
  const WithoutGil others;
  const std::lock_guard<std::mutex> guard(mutex_);
  TORCH_CHECK_VALUE(!region_, "dlslime: the window has a tensor already");
  checkedCall([&] {
    auto& engine = *handle_->engine;
    const auto region = engine.registerMemory(
        bytesOf(tensor),
        "window " + std::to_string(number_),
        owning ? sharedWithPython(c10::Storage(tensor.storage())) : nullptr);
    std::vector<Remote> remotes;
    try {
      const WindowPart mine(region->handle(), tensor);
      for (const auto& encoded : exchange(mine.encoded())) {
        remotes.push_back(remoteOf(WindowPart(encoded), mine.dtype));
      }
    } catch (const Error&) {
      engine.deregister(region, deadlineAfter(handle_->timeout.load()));
      throw;
    }
    tensor_ = tensor;
    region_ = region;
    remotes_ = std::move(remotes);
    puts_.assign(remotes_.size(), {});
  });
}

void Window::tensor_deregister() {
  requireUsable();
  const WithoutGil others;
  const std::lock_guard<std::mutex> guard(mutex_);
  TORCH_CHECK_VALUE(region_, "dlslime: the window has no tensor");
  checkedCall([&] {
    const auto limit = handle_->timeout.load();
    for (const auto& puts : puts_) {
      for (const auto& put : puts) {
        waitOrTakeBack(*handle_, put, limit, Signals::kLeave);
      }
    }
    exchange(Bytes(1)); // all ranks have stopped putting
    handle_->engine->deregister(region_, deadlineAfter(limit));
  });
  region_ = nullptr;
  tensor_ = at::Tensor();
  remotes_.clear();
}

Window::WorkPtr Window::put(
    const at::Tensor& tensor,
    int64_t dstRank,
    int64_t targetOffsetNelems,
    bool asyncOp,
    const c10d::PutOptions& opts) {
  checkedTensor("put", {tensor});
  const int rank = checked(dstRank);
  requireUsable();
  TransferPtr transfer;
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    TORCH_CHECK_VALUE(region_, "dlslime: the window has no tensor");
    transfer = checkedCall([&] {
      const auto local = sourceOf(tensor, *region_);
      const auto& remote = remotes_[static_cast<size_t>(rank)].handle;
      PieceBuilder builder(*local, *remote, true, 1);
      const auto unit = static_cast<int64_t>(tensor_.element_size());
      const auto size = static_cast<int64_t>(local->view().size);
      const bool fits = targetOffsetNelems >= 0 &&
          targetOffsetNelems <= static_cast<int64_t>(remote->size) / unit;
      builder.add(0, fits ? targetOffsetNelems * unit : -1, size);
      std::vector<Transfer::Part> parts;
      if (size > 0) {
        parts.push_back({local, remote, builder.take()});
        refuseOverlapWithSources(parts, true);
      }
      auto started = std::make_shared<Transfer>(
          Operation::Kind::kWrite, rank, std::move(parts));
      handle_->engine->transfer(*handle_->group, started);
      return started;
    });
    auto& puts = puts_[static_cast<size_t>(rank)];
    std::erase_if(puts, [](const TransferPtr& earlier) {
      return earlier->done() && earlier->status().ok();
    });
    puts.push_back(transfer);
  }
  return finish(transfer, {tensor}, asyncOp, limitOf(opts.timeout));
}

Window::WorkPtr Window::signal(
    int64_t peerRank,
    bool asyncOp,
    const c10d::SignalOptions& opts) {
  const int rank = checked(peerRank);
  requireUsable();
  std::vector<TransferPtr> puts;
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    if (!puts_.empty()) {
      puts.swap(puts_[static_cast<size_t>(rank)]);
    }
  }
  const auto limit = limitOf(opts.timeout);
  const WithoutGil others;
  const auto send = checkedCall([&] {
    for (const auto& put : puts) {
      waitOrTakeBack(*handle_, put, limit, Signals::kLeave);
      if (!put->status().ok()) {
        throw Error(put->status());
      }
    }
    return postSignal(Operation::Kind::kSend, rank);
  });
  return finish(send, {}, asyncOp, limit);
}

Window::WorkPtr Window::wait_signal(
    int64_t peerRank,
    bool asyncOp,
    const c10d::WaitSignalOptions& opts) {
  const int rank = checked(peerRank);
  requireUsable();
  const auto receive =
      checkedCall([&] { return postSignal(Operation::Kind::kReceive, rank); });
  return finish(receive, {}, asyncOp, limitOf(opts.timeout));
}

at::Tensor Window::map_remote_tensor(int64_t rank) {
  const int peer = checked(rank);
  requireUsable();
  const WithoutGil others;
  const std::lock_guard<std::mutex> guard(mutex_);
  TORCH_CHECK_VALUE(region_, "dlslime: the window has no tensor");
  if (peer == handle_->rank()) {
    return tensor_;
  }
  const auto& part = remotes_[static_cast<size_t>(peer)].part;
  constexpr auto kInstead =
      "; else put() to it, or read it by dlslime_backend.peer(rank).read()";
  TORCH_CHECK_NOT_IMPLEMENTED(
      part.mappable(),
      "dlslime: the tensor of rank ",
      rank,
      " is in ordinary memory, which can't be mapped into this process: make "
      "it there by the group's backend, allocate_tensor(count, dtype=..., "
      "device=torch.device(\"cpu\"))",
      kInstead);
  const auto pid = checkedCall(
      [&] { return handle_->engine->peerPid(*handle_->group, peer); });
  TORCH_CHECK_NOT_IMPLEMENTED(
      pid != 0,
      "dlslime: ",
      part.region.describe(),
      " (rank ",
      rank,
      ") can't be mapped into this process, which is possible on one host, "
      "where processes may read each other's memory "
      "(dlslime_backend.explain(rank) tells)",
      kInstead);
  return checkedCall([&] {
    try {
      return part.map(pid);
    } catch (const OutdatedDescriptor&) {
      throw; // the peer's window is gone
    } catch (const Error& error) {
      TORCH_CHECK_NOT_IMPLEMENTED(
          error.status().code() != ErrorCode::kUnavailable,
          "dlslime: ",
          error.what(),
          kInstead);
      throw;
    }
  });
}

c10d::WindowAttr Window::get_attr(int64_t peerRank) {
  checked(peerRank);
  return {c10d::WindowAccessType::UNIFIED};
}

c10::intrusive_ptr<c10d::Window> DlslimeBackend::new_window(
    const std::optional<at::Tensor>& tensor) {
  const auto number = windows_.fetch_add(1);
  TORCH_CHECK(
      number < kMostWindows,
      "dlslime: a group has at most ",
      kMostWindows,
      " windows");
  auto window = c10::make_intrusive<Window>(handle_, number);
  if (tensor) {
    window->tensor_register(*tensor, true);
  }
  return window;
}

} // namespace dlslime

#endif
