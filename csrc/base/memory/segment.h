#pragma once

#include <cstddef>
#include <utility>

#include "base/unique_fd.h"

namespace dlslime {

// Anonymous memory that two processes map: a sealed memfd. It has no name, so
// nothing stays in /dev/shm, whatever happens to the processes.
class Segment {
 public:
  // Throws Error.
  static Segment create(size_t size);
  // Which only this process can write to (Linux 5.1; before that, peers are
  // trusted not to).
  static Segment createForReaders(size_t size);
  // Maps a peer's segment. Throws Error unless it has exactly this size, is
  // sealed against shrinking, and of plain pages: of others, and of those that
  // are gone, our reads would be SIGBUS.
  static Segment adopt(UniqueFd fd, size_t size);
  static Segment adoptForReading(UniqueFd fd, size_t size);

  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&&) = delete;
  ~Segment();

  std::byte* data() const {
    return data_;
  }
  size_t size() const {
    return size_;
  }
  // A second descriptor of the same memory, to be sent to the peer.
  UniqueFd duplicateFd() const;
  // Its own, of which there are no more duplicates then.
  UniqueFd takeFd() {
    return std::move(fd_);
  }

 private:
  Segment(UniqueFd fd, size_t size, int protection);

  UniqueFd fd_;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

} // namespace dlslime
