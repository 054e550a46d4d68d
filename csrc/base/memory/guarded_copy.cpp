#include "base/memory/guarded_copy.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <memory>
#include <new>
#include <optional>

#include "base/memory/segment.h"

namespace dlslime {

namespace {

constexpr size_t kLeastScratch = 64 * 1024; // bytes; stays in the core's cache

// Memory of a thread for the kernel to copy to and from: a memfd, or, if no
// descriptor is free, heap memory used with process_vm_readv and
// process_vm_writev.
class Scratch {
 public:
  // Tag of the constructor for a memfd, throwing Error if no memfd can be made.
  struct InFile {};
  Scratch(InFile /*tag*/, size_t size)
      : segment_(Segment::create(size)),
        fd_(segment_->takeFd()),
        size_(size),
        data_(segment_->data()) {}
  struct InHeap {};
  Scratch(InHeap /*tag*/, size_t size)
      : plain_(new(std::nothrow) std::byte[size]),
        size_(size),
        data_(plain_.get()) {}

  // Returns the thread's scratch with room for `size` bytes, or null if none
  // can be had.
  static Scratch* ofThread(size_t size) {
    static thread_local std::unique_ptr<Scratch> scratch;
    const size_t wanted = std::max(std::bit_ceil(size), kLeastScratch);
    if (scratch != nullptr && scratch->serves(wanted)) {
      return scratch.get();
    }
    if (scratch != nullptr && scratch->fd_) {
      scratch.reset(); // gives back a descriptor, perhaps the last
    }
    try {
      scratch = std::make_unique<Scratch>(InFile(), wanted);
    } catch (const Error&) {
      if (scratch == nullptr || scratch->size_ < wanted) {
        scratch = std::make_unique<Scratch>(InHeap(), wanted);
      }
    }
    return scratch->works() ? scratch.get() : nullptr;
  }

  std::byte* data() const {
    return data_;
  }
  // Returns the memfd, or -1 for a scratch in heap memory.
  int fd() const {
    return fd_.get();
  }
  // Copies from `from` into the scratch; returns whether all bytes could be
  // read.
  bool take(const std::byte* from, size_t size) const {
    return all(size, [&](size_t done) {
      if (!fd_) {
        return between(process_vm_readv, done, from + done, size - done);
      }
      return pwrite(
          fd_.get(), from + done, size - done, static_cast<off_t>(done));
    });
  }
  // Copies from the scratch to `to`; returns whether all bytes could be
  // written.
  bool give(std::byte* to, size_t size) const {
    return all(size, [&](size_t done) {
      if (!fd_) {
        return between(process_vm_writev, done, to + done, size - done);
      }
      return pread(fd_.get(), to + done, size - done, static_cast<off_t>(done));
    });
  }

 private:
  // Returns whether the scratch can be used again. A forked child must not use
  // the parent's file, and a scratch without a file is replaced: a descriptor
  // may be free by now.
  bool serves(size_t size) const {
    return fd_ && pid_ == getpid() && size_ >= size;
  }
  // Returns whether the scratch can copy: many containers forbid
  // process_vm_readv.
  bool works() const {
    const std::byte probe{};
    return fd_ || (plain_ && take(&probe, 1));
  }
  template <typename Call>
  ssize_t between(
      const Call& call,
      size_t at,
      const std::byte* there,
      size_t size) const {
    const iovec ours{data_ + at, size};
    const iovec theirs{const_cast<std::byte*>(there), size};
    return call(getpid(), &ours, 1, &theirs, 1, 0);
  }
  // Repeats `move` until all bytes are moved; returns false on failure. A call
  // moves the bytes before a fault, and only the next call fails.
  template <typename Move>
  static bool all(size_t size, const Move& move) {
    size_t done = 0;
    while (done < size) {
      const ssize_t moved = move(done);
      if (moved <= 0 && !(moved < 0 && errno == EINTR)) {
        return false;
      }
      done += static_cast<size_t>(std::max<ssize_t>(moved, 0));
    }
    return true;
  }

  const pid_t pid_ = getpid();
  std::optional<Segment> segment_;
  UniqueFd fd_; // none: the scratch is plain_
  std::unique_ptr<std::byte[]> plain_;
  const size_t size_;
  std::byte* const data_;
};

constexpr size_t kMostPieces = 256; // 4 KiB on the stack

// Returns how many of the pieces a single call may copy.
template <typename Pieces>
size_t countTogether(const Pieces& pieces) {
  size_t count = 0;
  size_t bytes = 0;
  while (count < std::min(pieces.size(), kMostPieces) &&
         bytes + pieces[count].size() <= kLeastScratch) {
    bytes += pieces[count++].size();
  }
  return count;
}

template <typename Pieces>
size_t bytesOf(const Pieces& pieces) {
  size_t bytes = 0;
  for (const auto& piece : pieces) {
    bytes += piece.size();
  }
  return bytes;
}

// Copies all pieces by a single call; returns false for fewer than two pieces,
// and if the call did not copy all bytes.
template <typename Pieces, typename Call>
bool together(const Pieces& pieces, const Call& call) {
  if (pieces.size() < 2) {
    return false;
  }
  iovec places[kMostPieces];
  for (size_t i = 0; i < pieces.size(); ++i) {
    places[i] = {const_cast<std::byte*>(pieces[i].data()), pieces[i].size()};
  }
  return call(places, static_cast<int>(pieces.size())) ==
      static_cast<ssize_t>(bytesOf(pieces));
}

// Returns why a write to `at` failed: memory that can still be read is
// read-only.
Fault whyUnwritable(const Scratch& scratch, const std::byte* at, size_t size) {
  return scratch.take(at, size) ? Fault::kReadOnly : Fault::kGone;
}

} // namespace

GuardedBytes readGuarded(const std::byte* from, size_t size) {
  const auto* const scratch = Scratch::ofThread(size);
  if (scratch == nullptr) {
    return {{}, Fault::kNoScratch};
  }
  return scratch->take(from, size) ? GuardedBytes{{scratch->data(), size}}
                                   : GuardedBytes{{}, Fault::kGone};
}

Fault writeGuarded(std::byte* to, ByteSpan bytes) {
  const auto* const scratch = Scratch::ofThread(kLeastScratch);
  if (scratch == nullptr) {
    return Fault::kNoScratch;
  }
  while (!bytes.empty()) {
    const size_t size = std::min(bytes.size(), kLeastScratch);
    std::memcpy(scratch->data(), bytes.data(), size);
    if (!scratch->give(to, size)) {
      return whyUnwritable(*scratch, to, size);
    }
    to += size;
    bytes = bytes.subspan(size);
  }
  return Fault::kNone;
}

Fault gatherGuarded(std::span<const ByteSpan> pieces, std::byte* to) {
  while (!pieces.empty()) {
    const auto* const scratch = Scratch::ofThread(kLeastScratch);
    if (scratch == nullptr) {
      return Fault::kNoScratch;
    }
    const auto some = pieces.first(countTogether(pieces));
    if (together(some, [&](const iovec* from, int count) {
          return pwritev(scratch->fd(), from, count, 0);
        })) {
      const size_t bytes = bytesOf(some);
      copyBytes(to, scratch->data(), bytes);
      to += bytes;
      pieces = pieces.subspan(some.size());
      continue;
    }
    const auto there =
        readGuarded(pieces.front().data(), pieces.front().size());
    if (there.fault != Fault::kNone) {
      return there.fault;
    }
    copyBytes(to, there.bytes.data(), there.bytes.size());
    to += there.bytes.size();
    pieces = pieces.subspan(1);
  }
  return Fault::kNone;
}

Fault scatterGuarded(
    ByteSpan bytes,
    std::span<const std::span<std::byte>> places) {
  while (!places.empty()) {
    // Asks for the scratch anew, because writeGuarded() may have replaced the
    // scratch.
    const auto* const scratch = Scratch::ofThread(kLeastScratch);
    if (scratch == nullptr) {
      return Fault::kNoScratch;
    }
    const auto some = places.first(countTogether(places));
    const size_t size = bytesOf(some);
    if (together(some, [&](const iovec* to, int count) {
          copyBytes(scratch->data(), bytes.data(), size);
          return preadv(scratch->fd(), to, count, 0);
        })) {
      bytes = bytes.subspan(size);
      places = places.subspan(some.size());
      continue;
    }
    const auto place = places.front();
    const auto fault = writeGuarded(place.data(), bytes.first(place.size()));
    if (fault != Fault::kNone) {
      return fault;
    }
    bytes = bytes.subspan(place.size());
    places = places.subspan(1);
  }
  return Fault::kNone;
}

GuardedMove moveGuarded(std::byte* to, const std::byte* from, size_t size) {
  const auto* const scratch = Scratch::ofThread(kLeastScratch);
  if (scratch == nullptr) {
    return {Fault::kNoScratch};
  }
  const bool fromBack = from < to && to < from + size;
  for (size_t done = 0; done < size;) {
    const size_t step = std::min(size - done, kLeastScratch);
    const size_t at = fromBack ? size - done - step : done;
    if (!scratch->take(from + at, step)) {
      return {Fault::kGone};
    }
    if (!scratch->give(to + at, step)) {
      return {Fault::kNone, whyUnwritable(*scratch, to + at, step)};
    }
    done += step;
  }
  return {};
}

size_t moveGuardedTogether(std::span<const GuardedPiece> pieces) {
  iovec from[kMostPieces], to[kMostPieces];
  const size_t most = std::min(pieces.size(), kMostPieces);
  size_t count = 0, bytes = 0;
  while (count < most && bytes + pieces[count].size <= kLeastScratch) {
    const auto& piece = pieces[count];
    from[count] = {const_cast<std::byte*>(piece.from), piece.size};
    to[count] = {piece.to, piece.size};
    bytes += piece.size;
    ++count;
  }
  const auto* const scratch =
      count < 2 ? nullptr : Scratch::ofThread(kLeastScratch);
  if (scratch == nullptr) {
    return 0;
  }
  const auto all = static_cast<ssize_t>(bytes);
  const int places = static_cast<int>(count);
  const bool moved = pwritev(scratch->fd(), from, places, 0) == all &&
      preadv(scratch->fd(), to, places, 0) == all;
  return moved ? count : 0;
}

} // namespace dlslime
