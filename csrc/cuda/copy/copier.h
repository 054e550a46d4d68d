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

// Copies by the GPU's copy engines, and by a kernel for many small pieces, in a
// separate stream. The stream waits for nothing: both ends of a copy are ready
// when the copy is started, or all later copies would wait as well. Not
// thread-safe.
class Copier {
 public:
  // Throws Error if the stream can't be made.
  explicit Copier(std::shared_ptr<Gpu> gpu);
  // Waits for copies in progress.
  ~Copier();
  Copier(const Copier&) = delete;
  Copier& operator=(const Copier&) = delete;

  // Has small pieces copied by a kernel from now on, once a trial has
  // succeeded. Loading the kernel waits for all work given to the GPU (by an
  // H100's driver). Any thread, without the engine lock.
  void useKernel(std::shared_ptr<PinnedPool> pinned);

  // Starts copies and returns the number for takeEnded() to report, also after
  // a failure; the memory must stay until then. Throws bad_alloc before
  // anything has begun.
  uint64_t start(std::vector<Copy> copies);

  struct Ended {
    uint64_t id = 0;
    Status status;
  };
  // Returns the oldest of the started batches, if ended. Reports one end at a
  // time, since the caller may have no memory for handling the end.
  std::optional<Ended> takeEnded();
  bool idle() const {
    return running_.empty();
  }

 private:
  struct Running {
    uint64_t id = 0;
    Status status; // of giving the copies to the stream
    StreamMarks::Mark mark;
    std::shared_ptr<std::byte> list; // read by the kernel
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
  std::atomic<PieceKernel*> kernel_{nullptr}; // null: no kernel, or not yet
  std::deque<Running> running_;
  TimePoint lastNews_{}; // time of the last end, or of the last question for
                         // the stream's health
  uint64_t nextId_ = 1;
};

} // namespace dlslime::cuda
