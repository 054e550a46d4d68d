#include "cuda/copier.h"

#include "core/log.h"

namespace dlslime::cuda {

namespace {
// A stream that has failed writes no words: so often it is asked.
constexpr milliseconds kHealthInterval{10};
// Before others: copies are short, and somebody waits for them.
constexpr int kHighestPriority = -5;
// Pieces from which on one call for all is made. Chosen without a GPU.
constexpr size_t kLeastBatch = 4;
} // namespace

Copier::Copier(std::shared_ptr<Gpu> gpu) : gpu_(std::move(gpu)), marks_(gpu_) {
  const Gpu::Scope scope(*gpu_);
  // The driver takes the nearest priority that the device has.
  gpu_->driver().check(
      gpu_->driver().streamCreate(
          &stream_, kStreamNonBlocking, kHighestPriority),
      "making a stream for copies (cuStreamCreateWithPriority)");
}

Copier::~Copier() {
  try {
    const Gpu::Scope scope(*gpu_);
    gpu_->driver().streamSynchronize(stream_);
    gpu_->driver().streamDestroy(stream_);
  } catch (const Error& error) { // the context is gone, and the stream with it
    logDebug(error.what());
  }
}

// A call costs as much as copying hundreds of kilobytes.
Copier::Batch Copier::merged(std::span<const Copy> copies) {
  Batch batch;
  for (const auto& copy : copies) {
    if (copy.size == 0) {
      continue;
    }
    const bool goesOn = !batch.sizes.empty() &&
        batch.to.back() + batch.sizes.back() == copy.to &&
        batch.from.back() + batch.sizes.back() == copy.from;
    if (goesOn) {
      batch.sizes.back() += copy.size;
      continue;
    }
    batch.to.push_back(copy.to);
    batch.from.push_back(copy.from);
    batch.sizes.push_back(copy.size);
  }
  return batch;
}

Status Copier::enqueue(std::span<const Copy> copies) {
  auto batch = merged(copies);
  const Gpu::Scope scope(*gpu_);
  const auto& driver = gpu_->driver();
  if (batch.sizes.size() >= kLeastBatch && driver.memcpyBatchAsync != nullptr) {
    return enqueueBatch(batch);
  }
  for (size_t i = 0; i < batch.sizes.size(); ++i) {
    const auto result =
        driver.memcpyAsync(batch.to[i], batch.from[i], batch.sizes[i], stream_);
    if (result != Result::kSuccess) {
      return driver.status(result, "copying GPU memory (cuMemcpyAsync)");
    }
  }
  return {};
}

// Its copies are made in any order: none depends on another.
Status Copier::enqueueBatch(Batch& batch) {
  CopyAttributes attributes{kInStreamOrder, {}, {}, 0};
  size_t first = 0, failed = 0;
  const auto& driver = gpu_->driver();
  const auto result = driver.memcpyBatchAsync(
      batch.to.data(),
      batch.from.data(),
      batch.sizes.data(),
      batch.sizes.size(),
      &attributes,
      &first,
      1,
      &failed,
      stream_);
  return driver.status(result, "copying GPU memory (cuMemcpyBatchAsync)");
}

uint64_t Copier::start(std::span<const Copy> copies) {
  Running entry;
  entry.id = nextId_++;
  try {
    entry.status = enqueue(copies);
    // Also after an error: what was given to the stream before goes on.
    entry.mark = marks_.place(stream_);
  } catch (const Error& error) {
    // Not even a mark: nothing more can be known but that the stream is empty.
    gpu_->driver().streamSynchronize(stream_);
    entry.status = error.status();
  }
  if (running_.empty()) {
    lastNews_ = Clock::now();
  }
  running_.push_back(std::move(entry));
  return running_.back().id;
}

std::vector<Copier::Ended> Copier::takeEnded() {
  std::vector<Ended> ended;
  while (!running_.empty()) {
    auto& first = running_.front();
    if (first.mark && !first.mark.reached()) {
      break;
    }
    ended.push_back({first.id, std::move(first.status)});
    running_.pop_front();
  }
  if (ended.empty() && !running_.empty()) {
    lookForFailure(ended);
  } else {
    lastNews_ = Clock::now();
  }
  return ended;
}

void Copier::lookForFailure(std::vector<Ended>& ended) {
  const auto now = Clock::now();
  if (now - lastNews_ < kHealthInterval) {
    return;
  }
  lastNews_ = now;
  const auto result = gpu_->driver().streamQuery(stream_);
  if (result == Result::kSuccess || result == Result::kNotReady) {
    return;
  }
  const auto why =
      gpu_->driver().status(result, "copying by the stream of a GPU");
  for (auto& entry : running_) {
    ended.push_back({entry.id, why});
  }
  running_.clear();
}

} // namespace dlslime::cuda
