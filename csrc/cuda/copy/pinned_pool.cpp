#include "cuda/copy/pinned_pool.h"

#include <algorithm>
#include <bit>
#include <iterator>

#include "base/log.h"

namespace dlslime::cuda {

namespace {
constexpr size_t kLeastBytes = 4096;
// Least bytes of a slab, from which smaller pieces are cut.
constexpr size_t kSlabBytes = 1024 * 1024;
} // namespace

PinnedPool::~PinnedPool() {
  freeAll(slabs_);
}

void PinnedPool::freeAll(const Slabs& slabs) noexcept {
  try {
    const Gpu::Scope scope(*gpu_);
    for (const auto& [address, slab] : slabs) {
      gpu_->driver().hostFree(const_cast<std::byte*>(address));
    }
  } catch (const std::exception& error) {
    // The context is gone, and so is the memory.
    logDebug(error.what());
  }
}

void PinnedPool::addSlab(size_t sizeClass) {
  const size_t piece = kLeastBytes << sizeClass;
  const size_t size = std::max(piece, kSlabBytes);
  // Makes room for all pieces of the class, since giveBack() must not throw.
  auto& free = free_.at(sizeClass);
  size_t pieces = size / piece;
  for (const auto& [address, slab] : slabs_) {
    pieces += slab.sizeClass == sizeClass ? slab.size / piece : 0;
  }
  free.reserve(pieces);
  const Gpu::Scope scope(*gpu_);
  void* slab = nullptr;
  const auto result = gpu_->driver().hostAlloc(&slab, size, kHostAllocPortable);
  if (result != Result::kSuccess) {
    throw Error(gpu_->driver().status(
        result,
        ("allocating " + std::to_string(size) +
         " bytes of pinned memory, through which memory of a GPU is sent")
            .c_str()));
  }
  try {
    slabs_[static_cast<std::byte*>(slab)] = {size, sizeClass};
  } catch (const std::bad_alloc&) {
    gpu_->driver().hostFree(slab);
    throw;
  }
  for (size_t at = 0; at < size; at += piece) {
    free.push_back(static_cast<std::byte*>(slab) + at);
  }
}

std::shared_ptr<std::byte> PinnedPool::take(size_t size) {
  const size_t pieces = (std::max<size_t>(size, 1) - 1) / kLeastBytes;
  const auto sizeClass = static_cast<size_t>(std::bit_width(pieces));
  std::byte* piece = nullptr;
  {
    const MutexLock lock(mutex_);
    auto& free = free_.at(sizeClass);
    if (free.empty()) {
      addSlab(sizeClass);
    }
    piece = free.back();
    free.pop_back();
    ++slabOf(piece).taken;
  }
  // Makes the pointer after unlocking: on failure the deleter gives the piece
  // back, locking mutex_.
  return {piece, [pool = shared_from_this()](std::byte* back) {
            pool->giveBack(back);
          }};
}

// Returns the slab of a piece.
PinnedPool::Slab& PinnedPool::slabOf(const std::byte* piece) {
  return std::prev(slabs_.upper_bound(piece))->second;
}

void PinnedPool::giveBack(std::byte* piece) {
  const MutexLock lock(mutex_);
  auto& slab = slabOf(piece);
  --slab.taken;
  free_.at(slab.sizeClass).push_back(piece);
}

MemoryUse PinnedPool::memoryUse() {
  MemoryUse use;
  const MutexLock lock(mutex_);
  for (const auto& [address, slab] : slabs_) {
    (slab.taken == 0 ? use.idle : use.lasting) += slab.size;
  }
  return use;
}

void PinnedPool::trim() {
  Slabs idle; // freed after unlocking, since freeing may take long
  {
    const MutexLock lock(mutex_);
    for (auto& pieces : free_) {
      std::erase_if(pieces, [&](const auto* piece) REQUIRES(mutex_) {
        return slabOf(piece).taken == 0;
      });
    }
    for (auto next = slabs_.begin(); next != slabs_.end();) {
      const auto slab = next++;
      if (slab->second.taken == 0) {
        idle.insert(slabs_.extract(slab));
      }
    }
  }
  freeAll(idle);
}

} // namespace dlslime::cuda
