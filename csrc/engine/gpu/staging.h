#pragma once

#include <deque>
#include <functional>
#include <iterator>
#include <memory>
#include <span>
#include <vector>

#include "engine/progress/engine_mutex.h"
#include "interface/accelerator.h"
#include "interface/operation.h"

namespace dlslime {

// Copies of bytes from a peer's messages to GPUs, by way of pinned memory,
// where a route can't reach a GPU's memory. Under the engine's lock.
class Uploads {
 public:
  // Puts the bytes aside in pinned memory and begins to copy them to `places`,
  // in order. The places have as many bytes in all.
  void start(
      Accelerator& gpus,
      int device,
      ByteSpan bytes,
      std::span<const std::span<std::byte>> places,
      const CopyUser& user) REQUIRES(kEngineLock);
  // True if so many copies are under way that no more messages should be taken
  // from the peer now: a GPU may be slower than the peer.
  bool many() const REQUIRES(kEngineLock) {
    return load_->bytes > kMostBytes || load_->places > kMostPlaces;
  }
  static constexpr size_t kMostBytes = size_t{64} << 20;
  static constexpr size_t kMostPlaces = 65536;

 private:
  struct Load { // shared with the copies, which may outlive the object
    size_t bytes = 0;
    size_t places = 0;
  };
  const std::shared_ptr<Load> load_ = std::make_shared<Load>();
};

// Bytes of a GPU's memory on the way through pinned memory to a peer, in order,
// with up to 2 MiB copied ahead. Under the engine's lock.
class StagedSource {
 public:
  // Number of a peer's streams that hold pinned memory at a time; streams take
  // turns, since a peer may have many thousands of reads of our GPUs under way.
  static constexpr size_t kMostAtATime = 16;
  // Returns the position of a stream after its turn in the queue of waiting
  // streams: the end or, while the stream holds pinned memory, near enough to
  // the front for an early next turn.
  template <typename Queue>
  static auto nextTurn(Queue& others, bool staged) {
    return staged && others.size() >= kMostAtATime
        ? std::next(others.begin(), kMostAtATime - 1)
        : others.end();
  }

  StagedSource(Accelerator& gpus, int device, CopyUser user)
      : gpus_(gpus),
        device_(device),
        user_(std::move(user)),
        failed_(std::make_shared<bool>(false)) {}

  using Ranges = std::vector<std::span<const std::byte>>;
  // Adds to `next` the ranges of the next bytes: `most` bytes at most, fewer
  // only at the end.
  using Gather = std::function<void(size_t most, Ranges& next)>;
  void fetchAhead(const Gather& gather) REQUIRES(kEngineLock);

  // Returns up to `most` bytes that have come into pinned memory; empty while
  // the next bytes are still being copied.
  ByteSpan front(size_t most) const REQUIRES(kEngineLock);
  void pop(size_t size) REQUIRES(kEngineLock);
  // True if all fetched bytes have been popped.
  bool empty() const REQUIRES(kEngineLock) {
    return pieces_.empty();
  }
  // True if a copy has failed: bytes not yet copied never come, and `ended` of
  // the CopyUser was told why.
  bool failed() const REQUIRES(kEngineLock) {
    return *failed_;
  }

 private:
  struct Piece {
    size_t size = 0;
    std::shared_ptr<std::byte> bytes;
    std::shared_ptr<bool>
        there; // shared with the copy, which may outlive the object
  };
  bool fetch(const Gather& gather) REQUIRES(kEngineLock);
  void start(Piece& piece, const Ranges& ranges) REQUIRES(kEngineLock);

  Accelerator& gpus_;
  const int device_;
  const CopyUser user_;
  const std::shared_ptr<bool>
      failed_; // shared with the copies, which may outlive the object
  std::deque<Piece> pieces_;
  size_t taken_ = 0; // popped bytes of the first piece
};

} // namespace dlslime
