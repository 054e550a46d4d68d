#include "cuda/copy/stream_words.h"

#include <new>

#include "base/log.h"

namespace dlslime::cuda {

namespace {
// Each word has a cache line of its own, since different processors and GPUs
// write the words.
constexpr size_t kPageBytes = 64 * 1024;
constexpr size_t kStride = 64;
} // namespace

StreamWords::~StreamWords() {
  if (free_.size() != pages_.size() * (kPageBytes / kStride)) {
    return; // a stream may still write a word no longer waited for
  }
  try {
    const Gpu::Scope scope(*gpu_);
    for (void* const page : pages_) {
      gpu_->driver().hostFree(page);
    }
  } catch (const Error& error) { // the context is gone, and so is the memory
    logDebug(error.what());
  }
}

bool StreamWords::supported() const {
  return gpu_->driver().streamWriteValue != nullptr &&
      gpu_->driver().streamWaitValue != nullptr;
}

void StreamWords::addPage() {
  // Makes room first: nothing may throw when words come back, or once the page
  // is allocated.
  pages_.reserve(pages_.size() + 1);
  free_.reserve((pages_.size() + 1) * (kPageBytes / kStride));
  const Gpu::Scope scope(*gpu_);
  void* page = nullptr;
  gpu_->driver().check(
      gpu_->driver().hostAlloc(&page, kPageBytes, kHostAllocPortable),
      "allocating pinned memory for streams to wait on");
  pages_.push_back(page);
  for (size_t at = 0; at < kPageBytes; at += kStride) {
    free_.push_back(new (static_cast<std::byte*>(page) + at)
                        std::atomic<uint32_t>(0));
  }
}

StreamWords::Word StreamWords::take() {
  const MutexLock lock(mutex_);
  if (free_.empty()) {
    addPage();
  }
  auto* const place = free_.back();
  free_.pop_back();
  return {this, place, place->load(std::memory_order_relaxed) + 1};
}

void StreamWords::giveBack(std::atomic<uint32_t>* place) {
  const MutexLock lock(mutex_);
  free_.push_back(place);
}

void StreamWords::Word::setBy(Stream stream) const {
  const Gpu::Scope scope(*words_->gpu_);
  const auto& driver = words_->gpu_->driver();
  driver.check(
      driver.streamWriteValue(stream, address(), value_, kWriteValueDefault),
      "giving a stream a word to write (cuStreamWriteValue32)");
}

// Waits for at least the value: a word has one use at a time, so a later value
// can't come, and numbers that wrap make no difference.
void StreamWords::Word::holdBack(Stream stream) const {
  const Gpu::Scope scope(*words_->gpu_);
  const auto& driver = words_->gpu_->driver();
  driver.check(
      driver.streamWaitValue(stream, address(), value_, kWaitValueAtLeast),
      "making a stream wait (cuStreamWaitValue32)");
}

} // namespace dlslime::cuda
