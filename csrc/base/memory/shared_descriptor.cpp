#include "base/memory/shared_descriptor.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <system_error>
#include <thread>

#include "base/memory/word_read.h"
#include "base/random.h"

namespace dlslime {

namespace {

std::string problemOf(uint32_t pid, const std::string& why) {
  return "a descriptor of " +
      (pid == 0 ? std::string("the peer's process")
                : "process " + std::to_string(pid)) +
      " can't be had: " + why;
}

[[noreturn]] void cannotFetch(uint32_t pid, const std::string& why) {
  throw UnfetchableDescriptor(ErrorCode::kUnavailable, problemOf(pid, why));
}

[[noreturn]] void outdated(uint32_t pid) {
  throw OutdatedDescriptor(
      ErrorCode::kUnavailable,
      problemOf(pid, "the process has closed the descriptor"));
}

// Returns the word, or zero if there is no word any more. Throws Error if the
// word can't be read.
uint64_t wordOf(uint32_t pid, uint64_t address) {
  const auto silent = [&] {
    cannotFetch(
        pid, "process_vm_readv of the process's memory has not returned");
  };
  if (!WordRead::allowed(pid)) {
    silent();
  }
  const auto read = std::make_shared<WordRead>(pid, address);
  try {
    std::thread([read] { read->run(); }).detach();
  } catch (const std::system_error& error) {
    cannotFetch(pid, statusOf(error).message());
  }
  const auto result = read->await();
  if (!result) {
    silent();
  }
  if (isRefusal(result->error)) {
    cannotFetch(pid, "process_vm_readv: " + errnoText(result->error));
  }
  return result->word;
}

} // namespace

// Draws the word at random: the heap may give the word's address to the next
// descriptor, even to one of the same memory, so a number with a further use
// would not tell the two apart.
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
        "the peer's memory can't be read (process_vm_readv; see the "
        "container's "
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
            " (needs Linux 5.6; see the container's seccomp profile and "
            "ptrace_scope)");
  }
  // Reads the word last: a word still set proves that the copied descriptor was
  // open.
  const auto word = wordOf(pid, proof.address);
  if (word == 0 || word != proof.word) {
    outdated(pid);
  }
  return fetched;
}

} // namespace dlslime
