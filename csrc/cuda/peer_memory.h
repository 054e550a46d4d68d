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

// GPU memory shared by a peer on the host, and copies from and to the memory.
// Under the engine lock.
class PeerMemory final : public GpuSharing::PeerMemory {
 public:
  // Starts copies on GPU `device`.
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
      std::function<void(const Status&)> done) override;
  std::set<uint64_t> takeOutdated() override {
    return std::exchange(outdated_, {});
  }
  std::set<uint64_t> takeUnfetchable() override {
    return std::exchange(unfetchable_, {});
  }
  void take(uint64_t number, UniqueFd fd) override;

 private:
  using MappingPtr =
      std::shared_ptr<const Mapping>; // moves to unused_ at the end
  // Mapping of the peer's allocation for a local GPU.
  struct View {
    MappingPtr mapping; // set at the first use
    Status problem; // why mapping failed the last time
    TimePoint again{}; // time of the next try
    milliseconds pause{0}; // time from the last failure to the next try
  };
  // An allocation of the peer, known until freed by the peer, or until the peer
  // is gone.
  struct Known {
    ExportedAllocation exported;
    std::map<Device, View> views;
    bool outdated = false; // until described anew

    // Takes a new description. Mappings, and pauses after failures, stay.
    void describe(const ExportedAllocation& anew) {
      exported = anew;
      outdated = false;
    }
  };
  // Copies of a move(), and the mappings in use.
  struct Plan {
    std::vector<Copy> copies;
    std::vector<MappingPtr> used;
    bool whole = true; // all pieces could be mapped
    int tries = 0; // attempts to map an allocation
    // Mapping of the allocation entered last, or null if not mapped; most often
    // the next piece is in it, too.
    const Mapping* mapping = nullptr;
    // Range of the allocation entered last, in the peer's addresses.
    uint64_t begin = 0, end = 0;
  };
  Known& find(uint64_t address);
  MappingPtr mapFor(Plan& plan, const std::shared_ptr<Gpu>& gpu, Known& known);
  void map(const std::shared_ptr<Gpu>& gpu, Known& known, View& view);
  bool mayBeHandedOver(uint64_t id);
  MappingPtr mappingOf(std::shared_ptr<Gpu> gpu, const Known& known);
  void enter(Plan& plan, const std::shared_ptr<Gpu>& gpu, uint64_t address);
  void
  addTo(Plan& plan, const std::shared_ptr<Gpu>& gpu, bool write, Piece piece);

  const uint32_t pid_;
  const FindGpu gpuOf_;
  const Start start_;
  const std::shared_ptr<UnusedMappings> unused_;
  std::map<uint64_t, Known> known_; // by the peer's addresses; none overlap
  std::map<uint64_t, uint64_t> bases_; // the peer's addresses by id
  std::set<uint64_t> outdated_, unfetchable_; // ids found by the last move()
  // Descriptors handed over by the peer and not used yet, by number.
  std::map<uint64_t, UniqueFd> handed_;
  // Ids of allocations whose descriptors the peer was asked to hand over, and
  // the end of the time in which each has to come; kMostHanded at most.
  std::map<uint64_t, TimePoint> awaited_;
};

} // namespace dlslime::cuda
