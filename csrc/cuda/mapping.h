#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "cuda/exports.h"

namespace dlslime::cuda {

// An allocation of another process of this host, mapped for one of our GPUs.
class Mapping {
 public:
  Mapping(std::shared_ptr<Gpu> gpu, const ExportedAllocation& exported)
      : gpu_(std::move(gpu)), exported_(exported) {}
  // Unmaps it, which may wait for the GPU.
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  // Once. `pid`: of the exporter; 0: unknown, and its descriptors can't be had.
  // Throws OutdatedDescriptor, or Error: it can't be mapped, and why. What has
  // been mapped until then stays.
  void open(uint32_t pid);
  bool mapped() const { // or some of it
    return here_ != 0;
  }

  // Where so many bytes of the exporter's address are here. Throws
  // Error{kTransportFailed}: they are not in this allocation.
  DevicePointer at(uint64_t address, size_t bytes) const;

 private:
  using By = ExportedAllocation::By;
  void openIpc();
  void openFabric();
  void openDescriptor(uint32_t pid);
  void import(void* shareable, int type);
  void mapHandle(MemoryHandle handle);
  void requireSize(const Allocation& actual) const;
  void unmap() const;

  const std::shared_ptr<Gpu> gpu_;
  const ExportedAllocation exported_;
  DevicePointer here_ = 0;
  bool backed_ = false; // by memory; not of kIpc
};

// Mappings that nobody uses any more. To unmap may mean to wait for all streams
// of a GPU (cuIpcCloseMemHandle does), one of which may wait for us: that is
// for somebody who holds no lock, at a time when none does. Any thread.
class UnusedMappings {
 public:
  void add(std::unique_ptr<const Mapping> mapping);
  // Has this called when one is added; null: nobody any more.
  void onAdded(std::function<void()> tell);
  // Returns when they are unmapped, be it by another thread.
  void unmapAll();
  bool empty(); // and none is being unmapped

 private:
  std::mutex unmapping_; // held meanwhile
  std::mutex mutex_;
  // Guarded by mutex_:
  std::vector<std::unique_ptr<const Mapping>> all_;
  size_t taken_ = 0; // and being unmapped
  std::function<void()> tell_;
};

} // namespace dlslime::cuda
