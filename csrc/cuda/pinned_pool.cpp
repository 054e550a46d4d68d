#include "cuda/pinned_pool.h"

#include <algorithm>
#include <bit>

#include "core/log.h"

namespace dlslime::cuda {

namespace {
constexpr size_t kLeastBytes = 4096;
// Small pieces are cut from one piece of this size.
constexpr size_t kSlabBytes = 1024 * 1024;
} // namespace

PinnedPool::~PinnedPool() {
  try {
    const Gpu::Scope scope(*gpu_);
    for (void* const slab : slabs_) {
      gpu_->driver().hostFree(slab);
    }
  } catch (const Error& error) { // the context is gone, and its memory with it
    logDebug(error.what());
  }
}

void PinnedPool::addSlab(size_t sizeClass) {
  const size_t piece = kLeastBytes << sizeClass;
  const size_t size = std::max(piece, kSlabBytes);
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
  slabs_.push_back(slab);
  for (size_t at = 0; at < size; at += piece) {
    free_.at(sizeClass).push_back(static_cast<std::byte*>(slab) + at);
  }
}

std::shared_ptr<std::byte> PinnedPool::take(size_t size) {
  const size_t pieces = (std::max<size_t>(size, 1) - 1) / kLeastBytes;
  const auto sizeClass = static_cast<size_t>(std::bit_width(pieces));
  const std::lock_guard<std::mutex> guard(mutex_);
  auto& free = free_.at(sizeClass);
  if (free.empty()) {
    addSlab(sizeClass);
  }
  auto* const piece = free.back();
  free.pop_back();
  return {piece, [pool = shared_from_this(), sizeClass](std::byte* back) {
            const std::lock_guard<std::mutex> lock(pool->mutex_);
            pool->free_.at(sizeClass).push_back(back);
          }};
}

} // namespace dlslime::cuda
