#include "core/guarded_copy.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <memory>

#include "core/segment.h"

namespace dlslime {

namespace {

constexpr size_t kLeastScratch = 64 * 1024; // stays in the core's cache

// A file in memory, and where it is mapped.
class Scratch {
 public:
  explicit Scratch(size_t size)
      : pid_(getpid()),
        segment_(Segment::create(size)),
        fd_(segment_.takeFd()) {}

  // Of this thread, with so much room; null: there is none to be had.
  static Scratch* ofThread(size_t size) {
    static thread_local std::unique_ptr<Scratch> scratch;
    const size_t wanted = std::max(std::bit_ceil(size), kLeastScratch);
    // A forked child shares its parent's.
    if (scratch != nullptr && scratch->pid_ == getpid() &&
        scratch->segment_.size() >= wanted) {
      return scratch.get();
    }
    try {
      scratch.reset();
      scratch = std::make_unique<Scratch>(wanted);
    } catch (const Error&) {
      return nullptr;
    }
    return scratch.get();
  }

  std::byte* data() const {
    return segment_.data();
  }
  int fd() const {
    return fd_.get();
  }
  // Whether all of it could be copied from there into the file,
  bool take(const std::byte* from, size_t size) const {
    return all(size, [&](size_t done) {
      return pwrite(
          fd_.get(), from + done, size - done, static_cast<off_t>(done));
    });
  }
  // and from the file to there.
  bool give(std::byte* to, size_t size) const {
    return all(size, [&](size_t done) {
      return pread(fd_.get(), to + done, size - done, static_cast<off_t>(done));
    });
  }

 private:
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

  const pid_t pid_;
  Segment segment_;
  const UniqueFd fd_;
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
  const auto* const scratch = Scratch::ofThread(kLeastScratch);
  if (scratch == nullptr) {
    return Fault::kNoScratch;
  }
  while (!places.empty()) {
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
