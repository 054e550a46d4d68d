#include "base/memory/shared_descriptor.h"

#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <thread>

#include "base/clock.h"
#include "base/random.h"
#include "base/threads/mutex.h"

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

// Read of a word in a peer's memory, on a separate thread. The peer names the
// address, and may name memory that never becomes available: then the read does
// not return.
class WordRead {
 public:
  void run(uint32_t pid, uint64_t address) {
    uint64_t word = 0;
    const iovec here{&word, sizeof(word)};
    const iovec there{reinterpret_cast<void*>(address), sizeof(word)};
    const auto got =
        process_vm_readv(static_cast<pid_t>(pid), &here, 1, &there, 1, 0);
    const int error = got < 0 ? errno : 0;
    const MutexLock lock(mutex_);
    result_ = Result{got == sizeof(word) ? word : 0, error};
    changed_.notifyAll();
  }
  struct Result {
    uint64_t word = 0;
    int error = 0;
  };
  // Returns nothing if the read has not returned in time.
  std::optional<Result> await() {
    const auto deadline = deadlineAfter(kPatience);
    MutexLock lock(mutex_);
    while (!result_ && changed_.waitUntil(lock, deadline)) {
    }
    return result_;
  }

  static constexpr milliseconds kPatience{300};
  // Time from which a read counts as late; a read takes microseconds unless the
  // machine is overloaded.
  static constexpr milliseconds kLate{50};

 private:
  Mutex mutex_;
  Condition changed_;
  std::optional<Result> result_ GUARDED_BY(mutex_);
};

// Processes with memory that kept a read from returning. No further read of a
// process begins until the hanging read has returned, and none ever after
// several late reads.
class SilentProcesses {
 public:
  void add(uint32_t pid) {
    const MutexLock lock(mutex_);
    processes_[pid].silent = true;
  }
  void remove(uint32_t pid) {
    const MutexLock lock(mutex_);
    const auto found = processes_.find(pid);
    if (found != processes_.end()) {
      found->second.silent = false;
    }
  }
  // Counts a late read, for which the whole engine may have waited.
  void noteLate(uint32_t pid) {
    const MutexLock lock(mutex_);
    ++processes_[pid].late;
  }
  bool contains(uint32_t pid) {
    const MutexLock lock(mutex_);
    const auto found = processes_.find(pid);
    return found != processes_.end() &&
        (found->second.silent || found->second.late >= kMostLate);
  }
  static SilentProcesses& all() {
    static auto* const one = new SilentProcesses; // a thread may outlive main()
    return *one;
  }

 private:
  static constexpr int kMostLate = 8;
  struct Process {
    bool silent = false; // a read has not returned yet
    int late = 0;
  };
  Mutex mutex_;
  std::map<uint32_t, Process> processes_ GUARDED_BY(mutex_); // by pid
};

// Returns the word, or zero if there is no word any more. Throws Error if the
// word can't be read.
uint64_t wordOf(uint32_t pid, uint64_t address) {
  const auto silent = [&] {
    cannotFetch(
        pid, "process_vm_readv of the process's memory has not returned");
  };
  if (SilentProcesses::all().contains(pid)) {
    silent();
  }
  const auto read = std::make_shared<WordRead>();
  try {
    std::thread([read, pid, address] {
      read->run(pid, address);
      SilentProcesses::all().remove(pid);
    }).detach();
  } catch (const std::system_error& error) {
    cannotFetch(pid, statusOf(error).message());
  }
  const auto begun = Clock::now();
  const auto result = read->await();
  if (Clock::now() - begun >= WordRead::kLate) {
    SilentProcesses::all().noteLate(pid);
  }
  if (!result) {
    SilentProcesses::all().add(pid);
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
