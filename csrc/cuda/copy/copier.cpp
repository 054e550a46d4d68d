#include "cuda/copy/copier.h"

#include <algorithm>

#include "base/log.h"

namespace dlslime::cuda {

namespace {
// How often the stream's health is asked for: a failed stream writes no words.
constexpr milliseconds kHealthInterval{10};
// Ahead of the program's streams: copies are short, and threads wait for
// copies.
constexpr int kHighestPriority = -5;
// Fewest pieces for a batch call.
constexpr size_t kLeastBatch = 4;
// Fewest small pieces for a kernel: on an H100 the driver takes as long for a
// launch as for two copies (docs/cuda.md).
constexpr size_t kLeastLaunch = 4;
} // namespace

Copier::Copier(std::shared_ptr<Gpu> gpu) : gpu_(std::move(gpu)), marks_(gpu_) {
  const Gpu::Scope scope(*gpu_);
  // The driver takes the nearest priority known to the device.
  gpu_->driver().check(
      gpu_->driver().streamCreate(
          &stream_, kStreamNonBlocking, kHighestPriority),
      "making a stream for copies (cuStreamCreateWithPriority)");
}

void Copier::useKernel(std::shared_ptr<PinnedPool> pinned) {
  std::call_once(kernelMade_, [&] {
    ownKernel_ =
        std::make_unique<PieceKernel>(gpu_, std::move(pinned), marks_, stream_);
    kernel_.store(ownKernel_.get(), std::memory_order_release);
  });
}

Copier::~Copier() {
  try {
    const Gpu::Scope scope(*gpu_);
    gpu_->driver().streamSynchronize(stream_);
    ownKernel_.reset();
    gpu_->driver().streamDestroy(stream_);
  } catch (const Error& error) { // the context is gone, and so is the stream
    logDebug(error.what());
  }
}

// Gives copies to the stream. Adjacent copies are not joined: adjacent memory
// may be of two allocations, and no copy may cross the boundary.
Status Copier::enqueue(Copies copies, Running& entry) {
  std::erase_if(copies, [](const Copy& copy) { return copy.size == 0; });
  launchSmall(copies, entry);
  const Gpu::Scope scope(*gpu_);
  const auto& driver = gpu_->driver();
  if (copies.size() >= kLeastBatch && driver.memcpyBatchAsync != nullptr) {
    return enqueueBatch(copies);
  }
  for (const auto& [to, from, size] : copies) {
    const auto result = driver.memcpyAsync(to, from, size, stream_);
    if (result != Result::kSuccess) {
      return driver.status(result, "copying GPU memory (cuMemcpyAsync)");
    }
  }
  return {};
}

// Starts the small copies by the kernel and takes them out of `copies`: no copy
// of a batch depends on the rest.
void Copier::launchSmall(Copies& copies, Running& entry) {
  auto* const kernel = kernel_.load(std::memory_order_acquire);
  const bool usable =
      kernel != nullptr && kernel->usable(); // may end the trial
  if (!usable || copies.size() < kLeastLaunch) {
    return;
  }
  const auto small =
      std::partition(copies.begin(), copies.end(), [](const Copy& copy) {
        return !PieceKernel::takes(copy);
      });
  const std::span<const Copy> pieces(small, copies.end());
  if (pieces.size() >= kLeastLaunch) {
    entry.list = kernel->start(pieces);
  }
  if (entry.list) {
    copies.erase(small, copies.end());
  }
}

// Gives all copies to the stream by a single call; the driver makes the copies
// in any order.
Status Copier::enqueueBatch(const Copies& copies) {
  std::vector<DevicePointer> to, from;
  std::vector<size_t> sizes;
  to.reserve(copies.size());
  from.reserve(copies.size());
  sizes.reserve(copies.size());
  for (const auto& copy : copies) {
    to.push_back(copy.to);
    from.push_back(copy.from);
    sizes.push_back(copy.size);
  }
  CopyAttributes attributes{kInStreamOrder, {}, {}, 0};
  size_t first = 0, failed = 0;
  const auto& driver = gpu_->driver();
  const auto result = driver.memcpyBatchAsync(
      to.data(),
      from.data(),
      sizes.data(),
      sizes.size(),
      &attributes,
      &first,
      1,
      &failed,
      stream_);
  return driver.status(result, "copying GPU memory (cuMemcpyBatchAsync)");
}

// Makes the entry before giving anything to the stream, because the stream goes
// on with the copies after an exception, too.
uint64_t Copier::start(Copies copies) {
  if (running_.empty()) {
    lastNews_ = Clock::now();
  }
  auto& entry = running_.emplace_back();
  entry.id = nextId_++;
  try {
    entry.status = enqueue(std::move(copies), entry);
    // Marks the stream also after an error: copies given before go on.
    entry.mark = marks_.place(stream_);
  } catch (const std::exception& error) {
    // Without a mark, the end of the copies shows only by an empty stream.
    try {
      const Gpu::Scope scope(*gpu_);
      gpu_->driver().streamSynchronize(stream_);
    } catch (const Error& gone) {
      logDebug(gone.what());
    }
    entry.status = inWords([&] { return statusOf(error); });
  }
  return entry.id;
}

std::optional<Copier::Ended> Copier::takeEnded() {
  if (running_.empty()) {
    return std::nullopt;
  }
  auto& first = running_.front();
  if (first.mark && !first.mark.reached() && !lookForFailure()) {
    return std::nullopt;
  }
  Ended ended{first.id, std::move(first.status)};
  running_.pop_front();
  lastNews_ = Clock::now();
  return ended;
}

// Returns true if the stream has failed: all running copies have ended with the
// error.
bool Copier::lookForFailure() {
  const auto now = Clock::now();
  if (now - lastNews_ < kHealthInterval) {
    return false;
  }
  lastNews_ = now;
  const auto why = health();
  if (why.ok()) {
    return false;
  }
  for (auto& entry : running_) {
    entry.status = why;
    entry.mark = {};
  }
  return true;
}

Status Copier::health() const {
  try {
    const Gpu::Scope scope(*gpu_);
    const auto answer = gpu_->driver().streamQuery(stream_);
    return isLost(answer)
        ? gpu_->driver().status(answer, "copying by the stream of a GPU")
        : Status();
  } catch (const Error& error) { // the context is gone, and so is the stream
    return error.status();
  }
}

} // namespace dlslime::cuda
