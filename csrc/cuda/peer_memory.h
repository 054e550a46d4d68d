#pragma once

#include <functional>
#include <memory>

#include "core/accelerator.h"
#include "cuda/copier.h"
#include "cuda/shared_memory.h"

namespace dlslime::cuda {

// What one process of this host shares of its GPUs' memory, and the copies from
// there. Under the engine's lock.
class PeerMemory final : public Accelerator::PeerMemory {
 public:
  // Starts copies on this GPU.
  using Start =
      std::function<void(int device, std::span<const Copy>, Accelerator::Done)>;
  using FindGpu = std::function<std::shared_ptr<Gpu>(int device)>;

  PeerMemory(FindGpu gpuOf, Start start)
      : gpuOf_(std::move(gpuOf)), start_(std::move(start)) {}

  void forget(uint64_t id) override {
    mapped_.forget(id);
  }
  void move(
      int device,
      ByteSpan shared,
      bool write,
      std::span<const Piece> pieces,
      Accelerator::Done done) override;

 private:
  const FindGpu gpuOf_;
  const Start start_;
  Imports mapped_;
};

// What share() gives to peers, and PeerMemory takes from them. Throws
// Error{kTransportFailed}: it is not that.
Bytes encode(const ExportedAllocation& exported);
ExportedAllocation decodeAllocation(ByteSpan bytes);

} // namespace dlslime::cuda
