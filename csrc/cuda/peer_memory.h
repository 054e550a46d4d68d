#pragma once

#include <functional>
#include <map>
#include <memory>

#include "core/accelerator.h"
#include "cuda/copier.h"
#include "cuda/mapping.h"

namespace dlslime::cuda {

// What one process of this host shares of its GPUs' memory, and the copies from
// and to there. Under the engine's lock.
class PeerMemory final : public Accelerator::PeerMemory {
 public:
  // Starts copies on this GPU.
  using Start =
      std::function<void(int device, std::span<const Copy>, Accelerator::Done)>;
  using FindGpu = std::function<std::shared_ptr<Gpu>(int device)>;

  PeerMemory(uint32_t pid, FindGpu gpuOf, Start start)
      : pid_(pid), gpuOf_(std::move(gpuOf)), start_(std::move(start)) {}

  void add(uint64_t id, ByteSpan description) override;
  void forget(uint64_t id) override;
  void move(
      int device,
      bool write,
      std::span<const Piece> pieces,
      Accelerator::Done done) override;

 private:
  using MappingPtr = std::shared_ptr<const Mapping>;
  struct Known {
    ExportedAllocation exported;
    // By our GPU, from its first use on: kept until the peer has freed it, or
    // is gone.
    std::map<Device, MappingPtr> mapped;
    Status problem; // it was found that it can't be mapped
  };
  Known& find(uint64_t address);
  const MappingPtr& mapFor(const std::shared_ptr<Gpu>& gpu, Known& known);

  const uint32_t pid_;
  const FindGpu gpuOf_;
  const Start start_;
  std::map<uint64_t, Known> known_; // by the peer's addresses
  std::map<uint64_t, uint64_t> bases_; // those, by id
};

} // namespace dlslime::cuda
