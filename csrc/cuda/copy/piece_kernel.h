#pragma once

#include <memory>
#include <span>

#include "cuda/copy/pinned_pool.h"
#include "cuda/copy/stream_mark.h"

namespace dlslime::cuda {

// One piece of a copy between any two places that the GPU can get at: its own
// memory, another GPU's, what a peer has shared, pinned memory of the host.
struct Copy {
  DevicePointer to = 0;
  DevicePointer from = 0;
  size_t size = 0;
};

// Copies many small pieces by one launch on the GPU's processors, where copy
// engines take longer for each piece than for its bytes. It is loaded when
// memory is registered, since that may wait for the GPU, and used only once it
// has been seen to copy right there. Not thread-safe.
class PieceKernel {
 public:
  // Loads it, and starts to try it in the stream. Throws nothing: where it
  // can't be loaded it never becomes usable, which is logged.
  PieceKernel(
      std::shared_ptr<Gpu> gpu,
      std::shared_ptr<PinnedPool> pinned,
      StreamMarks& marks,
      Stream stream);
  // The stream has ended all of it.
  ~PieceKernel();
  PieceKernel(const PieceKernel&) = delete;
  PieceKernel& operator=(const PieceKernel&) = delete;

  static bool takes(const Copy& piece);
  bool usable();
  // Copies pieces, all of which it takes, in any order. What is returned has to
  // stay until then. Null: the copy engines are to copy these.
  std::shared_ptr<std::byte> start(std::span<const Copy> pieces);

 private:
  struct Trial { // of pinned memory
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
  std::unique_ptr<Trial> trial_; // under way
  bool usable_ = false;
};

} // namespace dlslime::cuda
