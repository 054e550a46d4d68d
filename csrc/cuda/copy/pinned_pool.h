#pragma once

#include <array>
#include <map>
#include <memory>
#include <vector>

#include "base/threads/mutex.h"
#include "cuda/driver/gpu.h"

namespace dlslime::cuda {

// Pinned memory in pieces of powers of two, kept for reuse: allocating takes a
// call that may wait for the GPU. Any thread.
class PinnedPool : public std::enable_shared_from_this<PinnedPool> {
 public:
  explicit PinnedPool(std::shared_ptr<Gpu> gpu) : gpu_(std::move(gpu)) {}
  ~PinnedPool();
  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;

  // Returns a piece that goes back to the pool with the last reference. Throws
  // Error if no pinned memory is left.
  std::shared_ptr<std::byte> take(size_t size);
  // Returns the bytes held; trim() frees the idle bytes.
  MemoryUse memoryUse();
  void trim();

 private:
  static constexpr size_t kClasses = 40; // the largest: 2 PiB
  // Memory cut into pieces of a size class.
  struct Slab {
    size_t size = 0;
    size_t sizeClass = 0;
    size_t taken = 0; // pieces in use
  };
  void addSlab(size_t sizeClass) REQUIRES(mutex_);
  Slab& slabOf(const std::byte* piece) REQUIRES(mutex_);
  void giveBack(std::byte* piece) EXCLUDES(mutex_);
  using Slabs = std::map<const std::byte*, Slab>; // by address
  void freeAll(const Slabs& slabs) noexcept;

  const std::shared_ptr<Gpu> gpu_;
  Mutex mutex_;
  Slabs slabs_ GUARDED_BY(mutex_);
  std::array<std::vector<std::byte*>, kClasses> free_ GUARDED_BY(mutex_);
};

} // namespace dlslime::cuda
