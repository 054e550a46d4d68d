#pragma once

#include "fakes/gpu/gpu_memory.h"
#include "fakes/peers/test_transfer.h"

namespace dlslime::testing {

// Registered memory of a rank, on a fake GPU or of processors.
class GpuRegion {
 public:
  // `gpu`: null, or the GPU whose stream orders the transfers.
  GpuRegion(Node& node, GpuSide* gpu, const Bytes& bytes)
      : node_(node), gpu_(gpu), first_(bytes), bytes_(bytes) {
    view_ = gpu != nullptr ? gpu->filled(bytes)
                           : MemoryView{bytes_.data(), bytes_.size()};
    region_ = node.engine->registerMemory(view_, "memory", nullptr);
  }

  MemoryView view() const {
    return view_;
  }
  const RegionHandle& handle() const {
    return region_->handle();
  }
  // Returns the bytes at the beginning.
  const Bytes& first() const {
    return first_;
  }
  Bytes content() const {
    // Takes the engine's lock, held by the writing thread before: the thread
    // sanitizer does not see messages in shared memory.
    node_.engine->connections();
    return gpu_ != nullptr ? gpu_->content(view_) : bytes_;
  }
  TestTransferPtr make(
      Operation::Kind kind,
      int peer,
      const RegionHandle& remote,
      const TestTransfer::Pieces& pieces) {
    auto transfer = TestTransfer::make(kind, peer, region_, remote, pieces);
    if (gpu_ != nullptr) {
      transfer->onDevice = std::make_unique<OnDevice>();
      transfer->onDevice->stream = gpu_->place();
    }
    return transfer;
  }
  TestTransferPtr make(
      Operation::Kind kind,
      int peer,
      const GpuRegion& remote,
      const TestTransfer::Pieces& pieces) {
    return make(kind, peer, remote.handle(), pieces);
  }
  TestTransferPtr post(TestTransferPtr transfer) {
    node_.engine->transfer(*node_.group, transfer);
    return transfer;
  }
  template <typename Remote>
  TestTransferPtr
  read(int peer, const Remote& remote, const TestTransfer::Pieces& pieces) {
    return post(make(Operation::Kind::kRead, peer, remote, pieces));
  }
  template <typename Remote>
  TestTransferPtr
  write(int peer, const Remote& remote, const TestTransfer::Pieces& pieces) {
    return post(make(Operation::Kind::kWrite, peer, remote, pieces));
  }
  void deregister() {
    node_.engine->deregister(region_, deadlineAfter(milliseconds(10000)));
  }

 private:
  Node& node_;
  GpuSide* const gpu_;
  const Bytes first_;
  Bytes bytes_;
  MemoryView view_;
  RegionPtr region_;
};

} // namespace dlslime::testing
