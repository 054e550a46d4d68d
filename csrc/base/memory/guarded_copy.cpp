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

constexpr size_t kLeastScratch = 64 * 1024; // stays in the core's cache

// Memory of this thread that the kernel copies to and from: a file in memory,
// or, where no descriptor is to be had, plain memory and the calls between
// processes.
class Scratch {
 public:
  // Throws Error where there can be no file.
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

  // Of this thread, with so much room; null: there is none to be had.
  static Scratch* ofThread(size_t size) {
    static thread_local std::unique_ptr<Scratch> scratch;
    const size_t wanted = std::max(std::bit_ceil(size), kLeastScratch);
    if (scratch != nullptr && scratch->serves(wanted)) {
      return scratch.get();
    }
    if (scratch != nullptr && scratch->fd_) {
      scratch.reset(); // its descriptor may be the last one
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
  // -1: it is not in a file.
  int fd() const {
    return fd_.get();
  }
  // Whether all of it could be copied from there into the scratch,
  bool take(const std::byte* from, size_t size) const {
    return all(size, [&](size_t done) {
      if (!fd_) {
        return between(process_vm_readv, done, from + done, size - done);
      }
      return pwrite(
          fd_.get(), from + done, size - done, static_cast<off_t>(done));
    });
  }
  // and from the scratch to there.
  bool give(std::byte* to, size_t size) const {
    return all(size, [&](size_t done) {
      if (!fd_) {
        return between(process_vm_writev, done, to + done, size - done);
      }
      return pread(fd_.get(), to + done, size - done, static_cast<off_t>(done));
    });
  }

 private:
  // A forked child shares its parent's file. Of one without, a file is tried
  // again: descriptors may be free by now.
  bool serves(size_t size) const {
    return fd_ && pid_ == getpid() && size_ >= size;
  }
  // Many containers forbid the calls between processes.
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
  // A call moves what there is before a fault, and only the next one fails.
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
  UniqueFd fd_; // none: the rest is plain_
  std::unique_ptr<std::byte[]> plain_;
  const size_t size_;
  std::byte* const data_;
};

constexpr size_t kMostPieces = 256; // 4 KiB on the stack

// How many of the pieces are copied by one call.
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

// Copies all of these by one call. False: it can't, or they are not several.
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

// After a write that failed there.
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
    // Anew each time: writeGuarded() may have got another one.
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

} // namespace dlslime
