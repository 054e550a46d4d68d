#pragma once

#include <array>
#include <memory>
#include <mutex>
#include <vector>

#include "cuda/gpu.h"

namespace dlslime::cuda {

// Pinned memory in pieces of powers of two, kept for their next use: making it
// takes a call that may wait for the GPU. Any thread.
class PinnedPool : public std::enable_shared_from_this<PinnedPool> {
 public:
  explicit PinnedPool(std::shared_ptr<Gpu> gpu) : gpu_(std::move(gpu)) {}
  ~PinnedPool();
  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;

  // Comes back by itself. Throws Error: there is none.
  std::shared_ptr<std::byte> take(size_t size);

 private:
  static constexpr size_t kClasses = 40; // the largest: 2 PiB
  void addSlab(size_t sizeClass);

  const std::shared_ptr<Gpu> gpu_;
  std::mutex mutex_;
  // Guarded by mutex_:
  std::vector<void*> slabs_;
  std::array<std::vector<std::byte*>, kClasses> free_;
};

} // namespace dlslime::cuda
