#include "transports/loopback/inside_copies.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "base/memory/guarded_copy.h"

namespace dlslime::loopback {

namespace {

// Moves a piece by guarded copies, since registered memory may fault at any
// time. `write`: from the local memory to the remote.
int moveInside(const GuardedPiece& piece, bool write) {
  const auto moved = moveGuarded(piece.to, piece.from, piece.size);
  if (moved.ofSource != Fault::kNone) {
    return codeOf({write, moved.ofSource});
  }
  return moved.ofDestination == Fault::kNone
      ? 0
      : codeOf({!write, moved.ofDestination});
}

// Moves small pieces together, and large or faulting ones one by one.
int moveEachInside(std::span<const GuardedPiece> pieces, bool write) {
  while (!pieces.empty()) {
    size_t moved = moveGuardedTogether(pieces);
    if (moved == 0) {
      const int error = moveInside(pieces.front(), write);
      if (error != 0) {
        return error;
      }
      moved = 1;
    }
    pieces = pieces.subspan(moved);
  }
  return 0;
}

int moveAllInside(const CopyJob& job, bool write) {
  constexpr size_t kMost = 256; // 6 KiB on the stack
  const Piece whole{job.local, job.remote, job.size};
  auto pieces = job.pieces.empty() ? std::span(&whole, 1) : job.pieces;
  int error = 0;
  while (error == 0 && !pieces.empty()) {
    GuardedPiece moves[kMost];
    const size_t count = std::min(pieces.size(), kMost);
    for (size_t i = 0; i < count; ++i) {
      const auto& [local, there, size] = pieces[i];
      auto* const remote = reinterpret_cast<std::byte*>(there);
      moves[i] = write ? GuardedPiece{remote, local, size}
                       : GuardedPiece{local, remote, size};
    }
    error = moveEachInside({moves, count}, write);
    pieces = pieces.subspan(count);
  }
  return error;
}

} // namespace

int copyInside(const CopyJob& job) {
  std::memmove(
      job.local, reinterpret_cast<const std::byte*>(job.remote), job.size);
  return 0;
}

int readInside(const CopyJob& job) {
  return moveAllInside(job, false);
}

int writeInside(const CopyJob& job) {
  return moveAllInside(job, true);
}

} // namespace dlslime::loopback
