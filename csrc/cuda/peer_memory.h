#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "base/clock.h"
#include "cuda/copy/copier.h"
#include "cuda/mapping.h"
#include "interface/accelerator.h"

namespace dlslime::cuda {

// What one process of this host shares of its GPUs' memory, and the copies from
// and to there. Under the engine's lock.
class PeerMemory final : public Accelerator::PeerMemory {
 public:
  // Starts copies on this GPU.
  using Start =
      std::function<void(int device, std::vector<Copy>, Accelerator::Done)>;
  using FindGpu = std::function<std::shared_ptr<Gpu>(int device)>;

  PeerMemory(
      uint32_t pid,
      FindGpu gpuOf,
      Start start,
      std::shared_ptr<UnusedMappings> unused)
      : pid_(pid),
        gpuOf_(std::move(gpuOf)),
        start_(std::move(start)),
        unused_(std::move(unused)) {}

  void add(uint64_t id, ByteSpan description) override;
  void forget(uint64_t id) override;
  void unmapIdle() override;
  bool move(
      int device,
      bool write,
      std::span<const Piece> pieces,
      Accelerator::Done done) override;
  std::set<uint64_t> takeOutdated() override {
    return std::exchange(outdated_, {});
  }

 private:
  using MappingPtr = std::shared_ptr<const Mapping>; // goes to unused_
  // For one of our GPUs.
  struct View {
    MappingPtr mapping; // from its first use on
    Status problem; // it can't be mapped, as far as is known;
    TimePoint again{}; // when to try it again,
    milliseconds pause{0}; // and how long that was away
  };
  struct Known { // until the peer has freed it, or is gone
    ExportedAllocation exported;
    std::map<Device, View> views;
    bool outdated = false; // until it is described anew
  };
  // Copies, and the mappings that they are in.
  struct Plan {
    std::vector<Copy> copies;
    std::vector<MappingPtr> used;
    bool whole = true; // all pieces could be mapped
    int tries = 0; // to map one
    // What the piece before lay in, by the peer's addresses: most often the
    // next one does as well. Null: it is not mapped.
    const Mapping* mapping = nullptr;
    uint64_t begin = 0, end = 0;
  };
  Known& find(uint64_t address);
  MappingPtr mapFor(Plan& plan, const std::shared_ptr<Gpu>& gpu, Known& known);
  void map(const std::shared_ptr<Gpu>& gpu, Known& known, View& view);
  MappingPtr mappingOf(std::shared_ptr<Gpu> gpu, const Known& known);
  void enter(Plan& plan, const std::shared_ptr<Gpu>& gpu, uint64_t address);
  void
  addTo(Plan& plan, const std::shared_ptr<Gpu>& gpu, bool write, Piece piece);

  const uint32_t pid_;
  const FindGpu gpuOf_;
  const Start start_;
  const std::shared_ptr<UnusedMappings> unused_;
  std::map<uint64_t, Known> known_; // by the peer's addresses; none overlap
  std::map<uint64_t, uint64_t> bases_; // those, by id
  std::set<uint64_t> outdated_; // found by the last move()
};

} // namespace dlslime::cuda
