#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "base/threads/mutex.h"
#include "cuda/exports.h"

namespace dlslime::cuda {

// An allocation of a peer on the host, mapped for a GPU of the process.
class Mapping {
 public:
  Mapping(std::shared_ptr<Gpu> gpu, const ExportedAllocation& exported)
      : gpu_(std::move(gpu)), exported_(exported) {}
  // Unmaps the allocation, and may wait for the GPU.
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  // Maps the allocation; called once. `pid` is the exporter's; 0 means unknown,
  // so descriptors can't be fetched. `handed` is the descriptor if the exporter
  // has handed it over. Throws OutdatedDescriptor, UnfetchableDescriptor, or
  // Error with the reason; a partial mapping stays until the destructor.
  void open(uint32_t pid, UniqueFd handed = {});
  bool mapped() const { // true even if only a part is mapped
    return here_ != 0;
  }

  // Returns the local address of `bytes` bytes at the exporter's `address`.
  // Throws Error{kTransportFailed} unless all bytes are in the allocation.
  DevicePointer at(uint64_t address, size_t bytes) const;

 private:
  using By = ExportedAllocation::By;
  void openIpc();
  void openFabric();
  void openDescriptor(uint32_t pid, UniqueFd handed);
  void import(void* shareable, int type);
  void mapHandle(MemoryHandle handle);
  void requireSize(const Allocation& actual) const;
  void unmap() const;

  const std::shared_ptr<Gpu> gpu_;
  const ExportedAllocation exported_;
  DevicePointer here_ = 0;
  bool backed_ = false; // memory is mapped at here_; not used for kIpc
};

// Mappings no longer in use. Unmapping may wait for all streams of a GPU
// (cuIpcCloseMemHandle does), and a stream may be waiting for the engine: so
// unmap without the engine lock and while no stream is blocked. Any thread.
class UnusedMappings {
 public:
  void add(std::unique_ptr<const Mapping> mapping);
  // Sets the function called, under mutex_, when a mapping is added; null: no
  // function.
  void onAdded(std::function<void()> tell);
  // Unmaps all mappings; returns when all are unmapped, even if a second thread
  // is unmapping some.
  void unmapAll();
  bool empty(); // false also while mappings are being unmapped

 private:
  Mutex unmapping_; // held while unmapping
  Mutex mutex_;
  std::vector<std::unique_ptr<const Mapping>> all_ GUARDED_BY(mutex_);
  size_t taken_ GUARDED_BY(mutex_) = 0; // mappings being unmapped
  std::function<void()> tell_ GUARDED_BY(mutex_);
};

} // namespace dlslime::cuda
