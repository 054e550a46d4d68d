#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "base/config.h"
#include "base/log_once.h"
#include "cuda/blocked_streams.h"
#include "cuda/copy/copier.h"
#include "cuda/copy/pinned_pool.h"
#include "cuda/exports.h"
#include "cuda/peer_memory.h"
#include "interface/accelerator.h"

namespace dlslime::cuda {

// The NVIDIA GPUs that this process uses, each from its first use on.
class CudaAccelerator final : public Accelerator {
 public:
  // `useKernel`: as Copier's. Throws Error: there is no driver.
  CudaAccelerator(bool useKernel, bool holdStreams);
  ~CudaAccelerator() override {
    unused_->onAdded(nullptr); // some may be added later
  }

  void meet(int device) override;
  std::unique_ptr<Mark> mark(const DeviceStream& stream, const Download& before)
      override;
  std::unique_ptr<StreamBlock> hold(const DeviceStream& stream) override;
  std::shared_ptr<std::byte> pin(int device, size_t size) override;
  MemoryUse memoryUse() override;
  void trim() override;
  void copy(int device, std::span<const Accelerator::Copy> copies, Done done)
      override;
  Accelerator::Allocation allocationOf(const MemoryView& view) override;
  ForNics forNics(const MemoryView& view) override;
  std::vector<uint64_t> share(const MemoryView& view) override;
  Bytes describeShared(uint64_t id) override;
  bool isShared(uint64_t id) override {
    return exports_.live(id);
  }
  void shareOnly(const std::set<uint64_t>& ids) override {
    exports_.dropAllBut(ids);
  }
  std::unique_ptr<Accelerator::PeerMemory> peerMemory(uint32_t pid) override;
  bool unmapUnused() override;
  void onUnused(std::function<void()> tell) override {
    unused_->onAdded(std::move(tell));
  }
  bool dropFreed() override {
    return exports_.dropFreed();
  }
  bool poll() override;
  bool copying() const override {
    return !busy_.empty();
  }

 private:
  class StreamHold;
  // What we have on one GPU.
  struct Site {
    explicit Site(std::shared_ptr<Gpu> which);
    const std::shared_ptr<Gpu> gpu;
    StreamMarks marks;
    StreamWords words; // that streams wait for
    const std::shared_ptr<PinnedPool> pinned;
    // Under the engine's lock:
    Copier copier;
    std::deque<Done> running; // in the order of their start
  };
  struct Place {
    std::mutex mutex; // held while the site is made
    std::unique_ptr<Site> site;
  };
  Site& site(int device);
  void start(Site& site, std::vector<cuda::Copy> copies, Done done);
  bool pollOne(Site& site);
  void sayUnshared(const Error& error);
  std::vector<std::shared_ptr<PinnedPool>> pools();

  const Driver& driver_;
  const bool holds_;
  const bool useKernel_;
  Exports exports_;
  const std::shared_ptr<UnusedMappings> unused_ =
      std::make_shared<UnusedMappings>();
  const std::shared_ptr<BlockedStreams> heldStreams_ =
      std::make_shared<BlockedStreams>();
  LogOnce unshared_; // why
  std::vector<Site*> busy_; // with copies under way; under the engine's lock
  std::mutex mutex_;
  // Guarded by mutex_:
  std::map<int, Place> places_; // by GPU; none is taken out
  std::vector<std::shared_ptr<PinnedPool>> pools_; // of all sites
};

// The GPU whose memory this address is of, or MemoryView::kProcessor.
int deviceOf(const std::byte* address);

} // namespace dlslime::cuda
