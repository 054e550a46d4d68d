#include "shm/cma.h"

#include <sys/uio.h>

#include <cerrno>

namespace dlslime::shm {

namespace {

using Copy = ssize_t (*)(
    pid_t,
    const iovec*,
    unsigned long,
    const iovec*,
    unsigned long,
    unsigned long);

// A call may move less than asked: it stops at the first page that it can't
// reach, and says why only when nothing was moved.
int copyAll(Copy copy, const CopyJob& job) {
  size_t moved = 0;
  while (moved < job.size) {
    const iovec local{job.local + moved, job.size - moved};
    const iovec remote{
        reinterpret_cast<void*>(job.remote + moved), job.size - moved};
    const auto got = copy(job.pid, &local, 1, &remote, 1, 0);
    if (got < 0 && errno != EINTR) {
      return errno;
    }
    if (got == 0) {
      return EFAULT;
    }
    moved += got > 0 ? static_cast<size_t>(got) : 0;
  }
  return 0;
}

} // namespace

int readFromPeer(const CopyJob& job) {
  return copyAll(process_vm_readv, job);
}

int writeToPeer(const CopyJob& job) {
  return copyAll(process_vm_writev, job);
}

int probePeer(uint32_t pid, const ProbeWord& word) {
  uint64_t value = 0;
  CopyJob job;
  job.local = reinterpret_cast<std::byte*>(&value);
  job.remote = word.address;
  job.size = sizeof(value);
  job.pid = static_cast<int>(pid);
  const int error = readFromPeer(job);
  if (error != 0) {
    return error;
  }
  return value == word.value ? 0 : ESRCH;
}

} // namespace dlslime::shm
