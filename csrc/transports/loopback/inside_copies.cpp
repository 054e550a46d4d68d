#include "transports/loopback/inside_copies.h"

#include <cstring>

#include "base/memory/guarded_copy.h"

namespace dlslime::loopback {

namespace {

// Moves a piece by guarded copies, since registered memory may fault at any
// time. `write`: from the local memory to the remote.
int moveInside(const Piece& piece, bool write) {
  auto* const remote = reinterpret_cast<std::byte*>(piece.remote);
  const auto moved = write ? moveGuarded(remote, piece.local, piece.size)
                           : moveGuarded(piece.local, remote, piece.size);
  if (moved.ofSource != Fault::kNone) {
    return codeOf({write, moved.ofSource});
  }
  return moved.ofDestination == Fault::kNone
      ? 0
      : codeOf({!write, moved.ofDestination});
}

int moveAllInside(const CopyJob& job, bool write) {
  const Piece whole{job.local, job.remote, job.size};
  int error = 0;
  for (const auto& piece :
       job.pieces.empty() ? std::span(&whole, 1) : job.pieces) {
    error = error == 0 ? moveInside(piece, write) : error;
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
