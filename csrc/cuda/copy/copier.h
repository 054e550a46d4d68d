#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "cuda/copy/piece_kernel.h"

namespace dlslime::cuda {

// Copies by the GPU's copy engines, without using its processors but for many
// small pieces, in a stream of its own that waits for nothing: both ends of a
// copy are ready when it is started, or what is behind it would wait as well.
// Not thread-safe.
class Copier {
 public:
  // `useKernel`: for many small pieces, where it works. Throws Error.
  explicit Copier(std::shared_ptr<Gpu> gpu);
  // Waits for what is under way.
  ~Copier();
  Copier(const Copier&) = delete;
  Copier& operator=(const Copier&) = delete;

  // Small pieces go by a kernel from now on, once it has been tried. To load it
  // waits for all that the GPU has been given, as an H100's driver does. Any
  // thread, without the engine's lock.
  void useKernel(std::shared_ptr<PinnedPool> pinned);

  // Returns a number by which takeEnded() will tell its end, well or badly. The
  // memory must stay until then. Throws bad_alloc: nothing has begun.
  uint64_t start(std::vector<Copy> copies);

  struct Ended {
    uint64_t id = 0;
    Status status;
  };
  // The first of those that were started, if it has ended: one at a time, since
  // the caller may have no memory for what follows from it.
  std::optional<Ended> takeEnded();
  bool idle() const {
    return running_.empty();
  }

 private:
  struct Running {
    uint64_t id = 0;
    Status status; // of giving it to the stream
    StreamMarks::Mark mark;
    std::shared_ptr<std::byte> list; // what a kernel reads
  };
  using Copies = std::vector<Copy>;
  Status enqueue(Copies copies, Running& entry);
  void launchSmall(Copies& copies, Running& entry);
  Status enqueueBatch(const Copies& copies);
  bool lookForFailure();
  Status health() const;

  const std::shared_ptr<Gpu> gpu_;
  StreamMarks marks_;
  Stream stream_ = nullptr;
  std::once_flag kernelMade_;
  std::unique_ptr<PieceKernel> ownKernel_;
  std::atomic<PieceKernel*> kernel_{nullptr}; // null: none, or not yet
  std::deque<Running> running_;
  TimePoint lastNews_{}; // something ended, or the stream was asked
  uint64_t nextId_ = 1;
};

} // namespace dlslime::cuda
