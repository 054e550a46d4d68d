#include "transports/shm/cma.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/memory/fault.h"

namespace dlslime::shm {

namespace {

using Copy = ssize_t (*)(
    pid_t,
    const iovec*,
    unsigned long,
    const iovec*,
    unsigned long,
    unsigned long);

bool readable(pid_t pid, const void* address) {
  char byte = 0;
  const iovec here{&byte, 1};
  const iovec there{const_cast<void*>(address), 1};
  return process_vm_readv(pid, &here, 1, &there, 1, 0) == 1;
}

// Returns the code of the error which stopped a copy at a piece. EFAULT does
// not tell which of the two sides is unreachable, so reading a byte of each
// finds out.
int problemAt(Copy copy, int pid, const Piece& piece, int error) {
  if (error != EFAULT) {
    return error;
  }
  const bool write = copy == process_vm_writev;
  const auto* const there = reinterpret_cast<const void*>(piece.remote);
  const auto* const here = static_cast<const void*>(piece.local);
  const bool remoteReadable = readable(pid, there);
  const bool localReadable = readable(getpid(), here);
  // The source is at fault if unreadable; otherwise the destination is at
  // fault, being unwritable.
  const bool local = write ? !localReadable : remoteReadable;
  const bool read = local ? localReadable : remoteReadable;
  return codeOf({local, read ? Fault::kReadOnly : Fault::kGone});
}

// Copies a contiguous range. A call may move fewer bytes than asked: the kernel
// stops at the first unreachable page, and reports an error only if nothing was
// moved.
int copyOne(Copy copy, const CopyJob& job) {
  size_t moved = 0;
  while (moved < job.size) {
    const Piece rest{job.local + moved, job.remote + moved, job.size - moved};
    const iovec local{rest.local, rest.size};
    const iovec remote{reinterpret_cast<void*>(rest.remote), rest.size};
    const auto got = copy(job.pid, &local, 1, &remote, 1, 0);
    if (got == 0 || (got < 0 && errno != EINTR)) {
      return problemAt(copy, job.pid, rest, got == 0 ? EFAULT : errno);
    }
    moved += got > 0 ? static_cast<size_t>(got) : 0;
  }
  return 0;
}

// Copies many small pieces with each call.
int copyPieces(Copy copy, const CopyJob& job) {
  constexpr size_t kMost = 256; // two arrays of 4 KiB on the stack
  iovec local[kMost], remote[kMost];
  auto rest = job.pieces;
  size_t skip = 0; // bytes of the first piece already moved
  while (!rest.empty()) {
    const size_t count = std::min(rest.size(), kMost);
    for (size_t i = 0; i < count; ++i) {
      const size_t done = i == 0 ? skip : 0;
      const size_t size = rest[i].size - done;
      local[i] = {rest[i].local + done, size};
      remote[i] = {reinterpret_cast<void*>(rest[i].remote + done), size};
    }
    const auto got = copy(job.pid, local, count, remote, count, 0);
    if (got == 0 || (got < 0 && errno != EINTR)) {
      const auto& first = rest.front();
      return problemAt(
          copy,
          job.pid,
          {first.local + skip, first.remote + skip, first.size - skip},
          got == 0 ? EFAULT : errno);
    }
    size_t moved = skip + (got > 0 ? static_cast<size_t>(got) : 0);
    while (!rest.empty() && moved >= rest.front().size) {
      moved -= rest.front().size;
      rest = rest.subspan(1);
    }
    skip = moved;
  }
  return 0;
}

int copyAll(Copy copy, const CopyJob& job) {
  return job.pieces.empty() ? copyOne(copy, job) : copyPieces(copy, job);
}

} // namespace

int readFromPeer(const CopyJob& job) {
  return copyAll(process_vm_readv, job);
}

int writeToPeer(const CopyJob& job) {
  return copyAll(process_vm_writev, job);
}

int accessProblem(uint32_t pid) {
  // The kernel checks the permission before the address, and no process has
  // memory at kNowhere.
  constexpr uintptr_t kNowhere = ~uintptr_t{0} - 4095;
  char byte = 0;
  const iovec here{&byte, 1};
  const iovec nowhere{reinterpret_cast<void*>(kNowhere), 1};
  const auto got =
      process_vm_readv(static_cast<pid_t>(pid), &here, 1, &nowhere, 1, 0);
  if (pid == 0 || got >= 0) {
    return ESRCH;
  }
  return errno == EFAULT ? 0 : errno;
}

} // namespace dlslime::shm
