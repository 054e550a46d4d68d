#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "base/config.h"
#include "base/log_once.h"
#include "base/threads/mutex.h"
#include "cuda/blocked_streams.h"
#include "cuda/copy/copier.h"
#include "cuda/copy/pinned_pool.h"
#include "cuda/exports.h"
#include "cuda/peer_memory.h"
#include "interface/accelerator.h"

namespace dlslime::cuda {

// The NVIDIA GPUs used by the process, each set up at the first use.
class CudaAccelerator final : public Accelerator,
                              public GpuNicMemory,
                              public GpuSharing,
                              public GpuMappings {
 public:
  // `useKernel` allows Copier::useKernel(), `holdStreams` allows hold(). Throws
  // Error without a driver.
  CudaAccelerator(bool useKernel, bool holdStreams);
  ~CudaAccelerator() override {
    unused_->onAdded(nullptr); // mappings added later must not call back
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
  Allocation allocationOf(const MemoryView& view) override;
  ForNics forNics(const MemoryView& view) override;
  std::vector<uint64_t> share(const MemoryView& view) override;
  Bytes describeShared(uint64_t id) override;
  bool isShared(uint64_t id) override {
    return exports_.live(id);
  }
  void shareOnly(const std::set<uint64_t>& ids) override {
    exports_.dropAllBut(ids);
  }
  Handed handOver(uint64_t id) override {
    return exports_.handOver(id);
  }
  std::unique_ptr<GpuSharing::PeerMemory> peerMemory(uint32_t pid) override;
  bool unmapUnused() override;
  void onUnused(std::function<void()> tell) override {
    unused_->onAdded(std::move(tell));
  }
  bool dropFreed() override {
    return exports_.dropFreed();
  }
  GpuNicMemory& nicMemory() override {
    return *this;
  }
  GpuSharing& sharing() override {
    return *this;
  }
  GpuMappings& mappings() override {
    return *this;
  }
  bool poll() override;
  bool copying() const override {
    return !busy_.empty();
  }

 private:
  class StreamHold;
  // State for a single GPU.
  struct Site {
    explicit Site(std::shared_ptr<Gpu> which);
    const std::shared_ptr<Gpu> gpu;
    StreamMarks marks;
    StreamWords words; // streams wait for these words
    const std::shared_ptr<PinnedPool> pinned;
    // The members below are used under the engine lock, except for
    // Copier::useKernel().
    Copier copier;
    std::deque<Done> running; // in order of start
  };
  struct Place {
    Mutex mutex; // held while making the site
    std::unique_ptr<Site> site GUARDED_BY(mutex);
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
  LogOnce unshared_; // reasons for not sharing memory, logged once each
  std::vector<Site*>
      busy_; // sites with copies in progress; under the engine lock
  Mutex mutex_;
  std::map<int, Place> places_ GUARDED_BY(mutex_); // by GPU; never removed
  // Of all sites.
  std::vector<std::shared_ptr<PinnedPool>> pools_ GUARDED_BY(mutex_);
};

// Returns the GPU with the memory at the address, or MemoryView::kProcessor.
int deviceOf(const std::byte* address);

} // namespace dlslime::cuda
