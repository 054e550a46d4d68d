#pragma once

#include <deque>
#include <functional>
#include <iterator>
#include <memory>
#include <span>
#include <vector>

#include "interface/accelerator.h"
#include "interface/operation.h"

namespace dlslime {

// Between memory of GPUs and messages, where a route can't get at it: by pinned
// memory. Under the engine's lock.

// What has come in messages of one peer and is on its way to GPUs.
class Uploads {
 public:
  // Puts the bytes aside, and copies them to these places, in order, which are
  // as many bytes.
  void start(
      Accelerator& gpus,
      int device,
      ByteSpan bytes,
      std::span<const std::span<std::byte>> places,
      const CopyUser& user);
  // So much that no more messages should be taken from this peer now: a GPU may
  // be slower than it.
  bool many() const {
    return load_->bytes > kMostBytes || load_->places > kMostPlaces;
  }
  static constexpr size_t kMostBytes = size_t{64} << 20;
  static constexpr size_t kMostPlaces = 65536;

 private:
  struct Load { // shared with the copies, which may end later
    size_t bytes = 0;
    size_t places = 0;
  };
  const std::shared_ptr<Load> load_ = std::make_shared<Load>();
};

// Bytes of a GPU's memory as they come into pinned memory, one after the other:
// a few hundred kilobytes are copied ahead.
class StagedSource {
 public:
  // Of one peer's streams, which take turns, so many hold pinned memory at a
  // time: its reads of our GPUs may be many thousands.
  static constexpr size_t kMostAtATime = 16;
  // Where one that has had its turn stands in the queue of the others: at the
  // end, or, as long as it holds pinned memory, where it is soon its turn
  // again.
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

  // Where the next bytes are: adds at most `most` of them, fewer only at the
  // end.
  using Ranges = std::vector<std::span<const std::byte>>;
  using Gather = std::function<void(size_t most, Ranges& next)>;
  void fetchAhead(const Gather& gather);

  // What is there, `most` bytes at most: nothing, if it is not there yet.
  ByteSpan front(size_t most) const;
  void pop(size_t size);
  // All that was fetched has been popped.
  bool empty() const {
    return pieces_.empty();
  }
  // What is not there never will be; `ended` was told why.
  bool failed() const {
    return *failed_;
  }

 private:
  struct Piece {
    size_t size = 0;
    std::shared_ptr<std::byte> bytes;
    std::shared_ptr<bool> there; // shared with the copy, which may end later
  };
  bool fetch(const Gather& gather);
  void start(Piece& piece, const Ranges& ranges);

  Accelerator& gpus_;
  const int device_;
  const CopyUser user_;
  const std::shared_ptr<bool> failed_; // as `there`
  std::deque<Piece> pieces_;
  size_t taken_ = 0; // bytes of the first piece
};

} // namespace dlslime
