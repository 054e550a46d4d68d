#pragma once

#include <memory>
#include <span>

#include "cuda/copy/pinned_pool.h"
#include "cuda/copy/stream_mark.h"

namespace dlslime::cuda {

// Copy of a contiguous piece between any two places accessible to the GPU:
// memory of the GPU, of a second GPU, or shared by a peer, and pinned memory of
// the host.
struct Copy {
  DevicePointer to = 0;
  DevicePointer from = 0;
  size_t size = 0;
};

// Kernel copying many small pieces by one launch on the GPU's processors: copy
// engines take longer for each piece than for the bytes. The kernel is loaded
// when memory is registered, since loading may wait for the GPU, and used only
// after a trial on the GPU has copied correctly. Not thread-safe.
class PieceKernel {
 public:
  // Loads the kernel and starts a trial in the stream. Throws nothing: a kernel
  // that can't be loaded never becomes usable, and the reason is logged.
  PieceKernel(
      std::shared_ptr<Gpu> gpu,
      std::shared_ptr<PinnedPool> pinned,
      StreamMarks& marks,
      Stream stream);
  // The stream must have ended all launches.
  ~PieceKernel();
  PieceKernel(const PieceKernel&) = delete;
  PieceKernel& operator=(const PieceKernel&) = delete;

  static bool takes(const Copy& piece);
  bool usable();
  // Starts copying pieces accepted by takes(), in any order. The returned
  // memory must stay until the copies have ended; null leaves the pieces to the
  // copy engines.
  std::shared_ptr<std::byte> start(std::span<const Copy> pieces);

 private:
  // Pinned memory of a trial in progress.
  struct Trial {
    std::shared_ptr<std::byte> bytes, list;
    StreamMarks::Mark mark;
  };
  void load();
  void beginTrial(StreamMarks& marks);
  void endTrial();
  std::shared_ptr<std::byte> launch(std::span<const Copy> pieces);
  void giveUp(const std::string& why);

  const std::shared_ptr<Gpu> gpu_;
  const std::shared_ptr<PinnedPool> pinned_;
  const Stream stream_;
  size_t mostBlocks_ = 0;
  Module module_ = nullptr;
  Function function_ = nullptr;
  std::unique_ptr<Trial> trial_; // in progress
  bool usable_ = false;
};

} // namespace dlslime::cuda
