#pragma once

#include <cstddef>
#include <utility>

#include "base/library/api.h"
#include "base/unique_fd.h"

namespace dlslime {

// Anonymous memory mapped by two processes: a sealed memfd. A memfd has no
// name, so nothing stays in /dev/shm, however the processes end.
class DLSLIME_API Segment {
 public:
  // Makes a segment for both processes to write. Throws Error.
  static Segment create(size_t size);
  // Makes a segment writable only by the creating process (from Linux 5.1; with
  // older kernels, peers are trusted not to write). Throws Error.
  static Segment createForReaders(size_t size);
  // Maps a peer's segment. Throws Error unless the segment has exactly `size`
  // bytes, is sealed against shrinking and has plain pages: reading missing
  // pages, or pages of a special kind, would raise SIGBUS.
  static Segment adopt(UniqueFd fd, size_t size);
  // Maps a peer's segment as adopt() does, but read-only.
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
  // Returns a second descriptor of the memory, to be sent to the peer.
  UniqueFd duplicateFd() const;
  // Returns the segment's own descriptor; duplicateFd() fails afterwards.
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
