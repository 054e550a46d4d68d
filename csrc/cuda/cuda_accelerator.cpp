#include "cuda/cuda_accelerator.h"

#include <algorithm>
#include <atomic>

#include "base/log.h"
#include "cuda/nic_memory.h"

namespace dlslime::cuda {

namespace {

DevicePointer pointerTo(const std::byte* memory) {
  return reinterpret_cast<DevicePointer>(memory);
}

Stream nativeOf(const DeviceStream& stream) {
  return static_cast<Stream>(stream.native);
}

// Returns whether a graph is being captured from the stream. Call within a
// Gpu::Scope.
bool isCapturing(const Gpu& gpu, Stream stream) {
  auto status = CaptureStatus::kNone;
  gpu.driver().check(
      gpu.driver().streamIsCapturing(stream, &status),
      "asking whether a stream is being captured (cuStreamIsCapturing)");
  return status != CaptureStatus::kNone;
}

// Throws Error if a graph is being captured from the stream. Call within a
// Gpu::Scope.
void refuseCapture(const Gpu& gpu, Stream stream) {
  if (isCapturing(gpu, stream)) {
    throw Error(
        ErrorCode::kInvalidArgument,
        "sends and receives can't be captured in a CUDA graph: their peers "
        "would wait for them at every replay; call them between the graphs");
  }
}

class Reached final : public Accelerator::Mark {
 public:
  bool reached() const override {
    return true;
  }
  Status health() const override {
    return {};
  }
};

class StreamPlace final : public Accelerator::Mark {
 public:
  StreamPlace(const Gpu& gpu, Stream stream, StreamMarks::Mark mark)
      : gpu_(gpu), stream_(stream), mark_(std::move(mark)) {}
  bool reached() const override {
    return mark_.reached();
  }
  Status health() const override {
    try {
      const Gpu::Scope scope(gpu_);
      if (isCapturing(gpu_, stream_)) {
        return {}; // later work is being captured, and streamQuery would spoil
                   // the capture
      }
      const auto answer = gpu_.driver().streamQuery(stream_);
      return isLost(answer)
          ? gpu_.driver().status(
                answer, "earlier work in the operation's stream")
          : Status();
    } catch (const Error& error) {
      return error.status();
    }
  }

 private:
  const Gpu& gpu_;
  const Stream stream_;
  const StreamMarks::Mark mark_;
};

} // namespace

class CudaAccelerator::StreamHold final : public Accelerator::StreamBlock {
 public:
  // Throws Error if the stream can't be made to wait.
  StreamHold(
      StreamWords::Word word,
      Stream stream,
      std::shared_ptr<BlockedStreams> held)
      : word_(std::move(word)), held_(std::move(held)) {
    held_->add([&] { word_.holdBack(stream); });
  }
  void release() override {
    if (!released_.exchange(true)) {
      word_.set();
      held_->drop();
    }
  }

 private:
  const StreamWords::Word word_;
  const std::shared_ptr<BlockedStreams> held_;
  std::atomic<bool> released_{false};
};

int deviceOf(const std::byte* address) {
  if (!driverIsLoaded()) {
    return MemoryView::kProcessor;
  }
  try {
    return allocationOf(loadDriver(), pointerTo(address)).device;
  } catch (const Error&) {
    return MemoryView::kProcessor;
  }
}

CudaAccelerator::Site::Site(std::shared_ptr<Gpu> which)
    : gpu(std::move(which)),
      marks(gpu),
      words(gpu),
      pinned(std::make_shared<PinnedPool>(gpu)),
      copier(gpu) {}

CudaAccelerator::CudaAccelerator(bool useKernel, bool holdStreams)
    : driver_(loadDriver()), holds_(holdStreams), useKernel_(useKernel) {}

CudaAccelerator::Site& CudaAccelerator::site(int device) {
  Place* place = nullptr;
  {
    const MutexLock lock(mutex_);
    place = &places_[device];
  }
  // Makes the site without mutex_: making takes long, and meanwhile threads may
  // need different GPUs.
  const MutexLock making(place->mutex);
  if (!place->site) {
    auto site = std::make_unique<Site>(std::make_shared<Gpu>(driver_, device));
    const MutexLock lock(mutex_);
    pools_.push_back(site->pinned);
    place->site = std::move(site);
  }
  return *place->site;
}

// Loads the kernel before the first message: loading waits for all work given
// to the GPU, and the work may wait for the message (a collective that the peer
// begins after receiving the message).
void CudaAccelerator::meet(int device) {
  auto& here = site(device);
  if (useKernel_) {
    here.copier.useKernel(here.pinned);
  }
}

std::unique_ptr<Accelerator::Mark> CudaAccelerator::mark(
    const DeviceStream& stream,
    const Download& before) {
  auto& here = site(stream.device);
  const auto native = nativeOf(stream);
  const Gpu::Scope scope(*here.gpu);
  refuseCapture(*here.gpu, native);
  if (before.size == 0 && driver_.streamQuery(native) == Result::kSuccess) {
    return std::make_unique<Reached>();
  }
  if (before.size != 0) {
    driver_.check(
        driver_.memcpyAsync(
            pointerTo(before.to), pointerTo(before.from), before.size, native),
        "copying to pinned memory (cuMemcpyAsync)");
  }
  try {
    return std::make_unique<StreamPlace>(
        *here.gpu, native, here.marks.place(native));
  } catch (const Error&) {
    if (before.size != 0) { // nothing else tells when the download has ended
      driver_.streamSynchronize(native);
    }
    throw;
  }
}

std::unique_ptr<Accelerator::StreamBlock> CudaAccelerator::hold(
    const DeviceStream& stream) {
  auto& here = site(stream.device);
  if (!holds_ || !here.words.supported()) {
    return nullptr;
  }
  return std::make_unique<StreamHold>(
      here.words.take(), nativeOf(stream), heldStreams_);
}

std::shared_ptr<std::byte> CudaAccelerator::pin(int device, size_t size) {
  return site(device).pinned->take(size);
}

std::vector<std::shared_ptr<PinnedPool>> CudaAccelerator::pools() {
  const MutexLock lock(mutex_);
  return pools_;
}

MemoryUse CudaAccelerator::memoryUse() {
  MemoryUse use;
  for (const auto& pool : pools()) {
    use += pool->memoryUse();
  }
  return use;
}

void CudaAccelerator::trim() {
  heldStreams_->whenNone([this] { // cuMemFreeHost waits for all streams, too
    for (const auto& pool : pools()) {
      pool->trim();
    }
  });
}

void CudaAccelerator::copy(
    int device,
    std::span<const Accelerator::Copy> copies,
    Done done) {
  std::vector<cuda::Copy> all;
  all.reserve(copies.size());
  for (const auto& copy : copies) {
    all.push_back({pointerTo(copy.to), pointerTo(copy.from), copy.size});
  }
  start(site(device), std::move(all), std::move(done));
}

void CudaAccelerator::start(
    Site& site,
    std::vector<cuda::Copy> copies,
    Done done) {
  if (std::find(busy_.begin(), busy_.end(), &site) == busy_.end()) {
    busy_.push_back(&site);
  }
  site.running.push_back(std::move(done));
  try {
    site.copier.start(std::move(copies));
  } catch (...) { // out of memory
    site.running.pop_back();
    throw;
  }
}

GpuNicMemory::Allocation CudaAccelerator::allocationOf(const MemoryView& view) {
  const auto all =
      allocationsOf(*site(view.device).gpu, pointerTo(view.data), view.size);
  Allocation found{{}, view};
  found.ids.reserve(all.size());
  for (const auto& one : all) {
    found.ids.push_back(one.bufferId);
  }
  found.whole.data = reinterpret_cast<std::byte*>(all.front().base);
  found.whole.size = all.back().end() - all.front().base;
  return found;
}

GpuNicMemory::ForNics CudaAccelerator::forNics(const MemoryView& view) {
  return cuda::forNics(*site(view.device).gpu, view);
}

void CudaAccelerator::sayUnshared(const Error& error) {
  if (unshared_.isNew(error.what())) {
    logWarning(
        "CUDA tensors go to other processes of this host through pinned "
        "memory, several times slower than over NVLink, because " +
        std::string(error.what()));
  }
}

std::vector<uint64_t> CudaAccelerator::share(const MemoryView& view) {
  try {
    return exports_.of(*site(view.device).gpu, pointerTo(view.data), view.size);
  } catch (const Error& error) {
    sayUnshared(error);
    return {};
  }
}

Bytes CudaAccelerator::describeShared(uint64_t id) {
  try {
    return encode(exports_.describe(id));
  } catch (const Error& error) {
    sayUnshared(error);
    return {};
  }
}

std::unique_ptr<GpuSharing::PeerMemory> CudaAccelerator::peerMemory(
    uint32_t pid) {
  return std::make_unique<cuda::PeerMemory>(
      pid,
      [this](int device) { return site(device).gpu; },
      [this](int device, std::vector<cuda::Copy> copies, Done done) {
        start(site(device), std::move(copies), std::move(done));
      },
      unused_);
}

bool CudaAccelerator::unmapUnused() {
  return unused_->empty() ||
      heldStreams_->whenNone([this] { unused_->unmapAll(); });
}

// Ends finished copies in order of start, but none added meanwhile; returns
// true if a copy ended.
bool CudaAccelerator::pollOne(Site& site) {
  bool any = false;
  for (auto most = site.running.size(); most > 0; --most) {
    const auto ended = site.copier.takeEnded();
    if (!ended) {
      break;
    }
    const auto done = std::move(site.running.front());
    site.running.pop_front();
    done(ended->status);
    any = true;
  }
  return any;
}

bool CudaAccelerator::poll() {
  bool any = false;
  for (size_t i = 0; i < busy_.size(); ++i) { // a `done` function may add sites
    any |= pollOne(*busy_[i]);
  }
  std::erase_if(busy_, [](const Site* site) { return site->running.empty(); });
  return any;
}

} // namespace dlslime::cuda
