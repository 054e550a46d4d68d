#pragma once

#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "core/clock.h"
#include "cuda/stream_mark.h"

namespace dlslime::cuda {

// One piece of a copy between any two places that the GPU can get at: its own
// memory, another GPU's, what a peer has shared, pinned memory of the host.
struct Copy {
  DevicePointer to = 0;
  DevicePointer from = 0;
  size_t size = 0;
};

// Copies by the GPU's copy engines, without using its processors, in a stream
// of its own that waits for nothing: both ends of a copy are ready when it is
// started, or what is behind it would wait as well. Not thread-safe.
class Copier {
 public:
  // Throws Error.
  explicit Copier(std::shared_ptr<Gpu> gpu);
  // Waits for what is under way.
  ~Copier();
  Copier(const Copier&) = delete;
  Copier& operator=(const Copier&) = delete;

  // Returns a number by which takeEnded() will tell its end, well or badly. The
  // memory must stay until then.
  uint64_t start(std::span<const Copy> copies);

  struct Ended {
    uint64_t id = 0;
    Status status;
  };
  // Those that have ended since the last call, in the order in which they were
  // started.
  std::vector<Ended> takeEnded();
  bool idle() const {
    return running_.empty();
  }

 private:
  struct Running {
    uint64_t id = 0;
    Status status; // of giving it to the stream
    StreamMarks::Mark mark;
  };
  // What enqueue() gives to the driver: neighbours are merged.
  struct Batch {
    std::vector<DevicePointer> to, from;
    std::vector<size_t> sizes;
  };
  static Batch merged(std::span<const Copy> copies);
  Status enqueue(std::span<const Copy> copies);
  Status enqueueBatch(Batch& batch);
  void lookForFailure(std::vector<Ended>& ended);

  const std::shared_ptr<Gpu> gpu_;
  StreamMarks marks_;
  Stream stream_ = nullptr;
  std::deque<Running> running_;
  TimePoint lastNews_{}; // something ended, or the stream was asked
  uint64_t nextId_ = 1;
};

} // namespace dlslime::cuda
