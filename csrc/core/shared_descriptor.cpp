#include "core/shared_descriptor.h"

#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "core/random.h"

namespace dlslime {

namespace {

std::string problemOf(uint32_t pid, const std::string& why) {
  return "a descriptor of process " + std::to_string(pid) +
      " can't be had: " + why;
}

[[noreturn]] void cannotFetch(uint32_t pid, const std::string& why) {
  throw Error(ErrorCode::kUnavailable, problemOf(pid, why));
}

[[noreturn]] void outdated(uint32_t pid) {
  throw OutdatedDescriptor(
      ErrorCode::kUnavailable, problemOf(pid, "it has been closed meanwhile"));
}

// Zero: there is none any more. Throws Error: it can't be read.
uint64_t wordOf(uint32_t pid, uint64_t address) {
  uint64_t word = 0;
  const iovec here{&word, sizeof(word)};
  const iovec there{reinterpret_cast<void*>(address), sizeof(word)};
  const auto got =
      process_vm_readv(static_cast<pid_t>(pid), &here, 1, &there, 1, 0);
  if (got < 0 && isRefusal(errno)) {
    cannotFetch(pid, "process_vm_readv: " + errnoText(errno));
  }
  return got == sizeof(word) ? word : 0;
}

} // namespace

// The heap gives the place of a word again, also to the next descriptor of the
// same memory: so it is no number that anything has besides.
SharedDescriptor::SharedDescriptor(UniqueFd fd) : fd_(std::move(fd)), word_(0) {
  uint64_t word = 0;
  const auto bytes = randomBytes(sizeof(word));
  std::memcpy(&word, bytes.data(), bytes.size());
  word_.store(std::max<uint64_t>(word, 1));
}

UniqueFd
fetchDescriptor(uint32_t pid, int number, const DescriptorProof& proof) {
  if (pid == 0) {
    cannotFetch(
        pid,
        "its memory can't be read either (process_vm_readv; the container's "
        "seccomp profile, ptrace_scope, or DLSLIME_CMA=off)");
  }
  const UniqueFd process(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!process) {
    cannotFetch(pid, "pidfd_open: " + errnoText(errno));
  }
  UniqueFd fetched(
      static_cast<int>(syscall(SYS_pidfd_getfd, process.get(), number, 0)));
  if (!fetched && errno == EBADF) {
    outdated(pid);
  }
  if (!fetched) {
    cannotFetch(
        pid,
        "pidfd_getfd: " + errnoText(errno) +
            " (Linux 5.6, the container's seccomp profile, ptrace_scope)");
  }
  // Last: it was still open before that.
  const auto word = wordOf(pid, proof.address);
  if (word == 0 || word != proof.word) {
    outdated(pid);
  }
  return fetched;
}

} // namespace dlslime
