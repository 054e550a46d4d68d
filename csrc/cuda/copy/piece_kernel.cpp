#include "cuda/copy/piece_kernel.h"

#include <algorithm>
#include <cstring>

#include "base/log.h"
#include "cuda/copy/copy_pieces_ptx.h"

namespace dlslime::cuda {

namespace {

constexpr size_t kVector = 16; // bytes
constexpr size_t kWarp = 32, kThreads = 256; // per block
// Bytes copied by a warp at a time. Larger pieces are cut, or a few large
// pieces would keep few warps at work.
constexpr size_t kPart = 16 << 10;
// Largest piece for the kernel: beyond, a copy engine takes longer for the
// bytes than for the call. Chosen without a GPU; benchmarks/gpu_check measures
// both ways.
constexpr size_t kMostBytes = 256 << 10;
// Blocks of a launch for each processor of the GPU; chosen without a GPU, too.
constexpr size_t kBlocksPerProcessor = 2;
constexpr size_t kTrialBytes = 3 * kPart;

// The kernel reads pieces in the form of dlslime_piece.
static_assert(sizeof(Copy) == 24 && offsetof(Copy, size) == 16);

size_t partsOf(const Copy& piece) {
  return (piece.size + kPart - 1) / kPart;
}

DevicePointer addressOf(const std::byte* memory) {
  return reinterpret_cast<DevicePointer>(memory);
}

} // namespace

PieceKernel::PieceKernel(
    std::shared_ptr<Gpu> gpu,
    std::shared_ptr<PinnedPool> pinned,
    StreamMarks& marks,
    Stream stream)
    : gpu_(std::move(gpu)), pinned_(std::move(pinned)), stream_(stream) {
  try {
    load();
    beginTrial(marks);
  } catch (const std::exception& error) {
    giveUp(error.what());
  }
}

PieceKernel::~PieceKernel() {
  trial_.reset();
  if (module_ == nullptr) {
    return;
  }
  try {
    const Gpu::Scope scope(*gpu_);
    gpu_->driver().moduleUnload(module_);
  } catch (const Error& error) { // the context is gone, and so is the module
    logDebug(error.what());
  }
}

void PieceKernel::load() {
  const Gpu::Scope scope(*gpu_);
  const auto& driver = gpu_->driver();
  driver.check(
      driver.moduleLoad(&module_, kCopyPiecesPtx),
      "loading the kernel that copies pieces (cuModuleLoadData)");
  driver.check(
      driver.moduleFunction(&function_, module_, "dlslime_copy_pieces"),
      "finding the kernel that copies pieces (cuModuleGetFunction)");
  int processors = 0;
  driver.check(
      driver.deviceGetAttribute(
          &processors, DeviceAttribute::kProcessors, gpu_->ordinal()),
      "asking for a GPU's processors");
  mostBlocks_ =
      kBlocksPerProcessor * static_cast<size_t>(std::max(processors, 1));
}

// Copies pinned memory to pinned memory, so that the CPU can look at the bytes.
void PieceKernel::beginTrial(StreamMarks& marks) {
  auto trial = std::make_unique<Trial>();
  trial->bytes = pinned_->take(2 * kTrialBytes);
  auto* const from = trial->bytes.get();
  for (size_t i = 0; i < kTrialBytes; ++i) {
    from[i] = static_cast<std::byte>(i * 7 + i / 256);
    from[kTrialBytes + i] = std::byte{0};
  }
  constexpr size_t kFirst =
      2 * kPart + 5 * kVector; // cut into parts of two lengths
  const auto source = addressOf(from), target = source + kTrialBytes;
  const Copy pieces[] = {
      {target, source, kFirst},
      {target + kFirst, source + kFirst, kTrialBytes - kFirst}};
  trial->list = launch(pieces);
  try {
    trial->mark = marks.place(stream_);
  } catch (const std::exception&) {
    const Gpu::Scope scope(*gpu_);
    gpu_->driver().streamSynchronize(stream_); // before the memory goes
    throw;
  }
  trial_ = std::move(trial);
}

bool PieceKernel::usable() {
  if (trial_ && trial_->mark.reached()) {
    endTrial();
  }
  return usable_;
}

void PieceKernel::endTrial() {
  const auto* const bytes = trial_->bytes.get();
  usable_ = std::memcmp(bytes, bytes + kTrialBytes, kTrialBytes) == 0;
  trial_.reset();
  if (!usable_) {
    giveUp("the kernel's trial has copied wrong bytes");
  }
}

bool PieceKernel::takes(const Copy& piece) {
  return piece.size <= kMostBytes &&
      (piece.to | piece.from | piece.size) % kVector == 0;
}

std::shared_ptr<std::byte> PieceKernel::start(std::span<const Copy> pieces) {
  try {
    return launch(pieces);
  } catch (const Error& error) {
    giveUp(error.what());
    return nullptr;
  } catch (const std::bad_alloc&) { // left to the copy engines this time
    return nullptr;
  }
}

std::shared_ptr<std::byte> PieceKernel::launch(std::span<const Copy> pieces) {
  size_t parts = 0;
  for (const auto& piece : pieces) {
    parts += partsOf(piece);
  }
  auto list = pinned_->take(parts * sizeof(Copy));
  auto* next = list.get();
  for (const auto& piece : pieces) {
    for (size_t at = 0; at < piece.size; at += kPart) {
      const Copy part{
          piece.to + at, piece.from + at, std::min(kPart, piece.size - at)};
      std::memcpy(next, &part, sizeof(part));
      next += sizeof(part);
    }
  }
  auto address = addressOf(list.get());
  auto count = static_cast<unsigned>(parts);
  void* parameters[] = {&address, &count};
  const auto blocks =
      std::min(mostBlocks_, (parts * kWarp + kThreads - 1) / kThreads);
  const Gpu::Scope scope(*gpu_);
  gpu_->driver().check(
      gpu_->driver().launchKernel(
          function_,
          static_cast<unsigned>(blocks),
          1,
          1,
          kThreads,
          1,
          1,
          0,
          stream_,
          parameters,
          nullptr),
      "copying pieces (cuLaunchKernel)");
  return list;
}

void PieceKernel::giveUp(const std::string& why) {
  usable_ = false;
  logInfo(
      "batches of small pieces are copied by the copy engines of " +
      gpu_->describe() + " instead of dlslime's kernel, because " + why);
}

} // namespace dlslime::cuda
