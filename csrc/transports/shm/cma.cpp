#include "transports/shm/cma.h"

#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>

#include "base/memory/fault.h"
#include "base/status.h"

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

namespace {

constexpr uint64_t kPtraceCapability = uint64_t{1} << 19; // CAP_SYS_PTRACE
constexpr ino_t kInitialPidNamespace = 4026531836; // the kernel's constant

constexpr int kNoAttach = 3; // of Yama's scopes; stays until a restart

bool yamaForbids(const AccessRules& rules) {
  return rules.yamaScope == kNoAttach ||
      (rules.yamaScope > 0 && !rules.privileged);
}

std::string causeOf(uint32_t pid, int error, const AccessRules& rules) {
  std::string text = errnoText(error);
  if (pid == 0) {
    return "the process is in another pid namespace";
  }
  if (error == EPERM && yamaForbids(rules)) {
    text += "; kernel.yama.ptrace_scope is " + std::to_string(rules.yamaScope);
  }
  if (error == EPERM && rules.seccomp) {
    text += "; a seccomp filter is active";
  }
  return text;
}

std::string remedyOf(uint32_t pid, int error, const AccessRules& rules) {
  if (pid == 0) {
    return "start both containers with one pid namespace (docker run --pid, "
           "in a pod shareProcessNamespace)";
  }
  if (error == ENOSYS && !rules.seccomp) {
    return "use a kernel with CONFIG_CROSS_MEMORY_ATTACH";
  }
  std::string text;
  if (yamaForbids(rules)) {
    text = rules.yamaScope == kNoAttach
        ? "set kernel.yama.ptrace_scope=0 in /etc/sysctl.conf and restart the "
          "host"
        : "set sysctl kernel.yama.ptrace_scope=0";
  }
  if (rules.seccomp) {
    text += std::string(text.empty() ? "" : " and ") +
        "use a seccomp profile that allows process_vm_readv and "
        "process_vm_writev (docker run --security-opt)";
  }
  return text.empty() ? "give the processes CAP_SYS_PTRACE (docker run "
                        "--cap-add SYS_PTRACE)"
                      : text;
}

} // namespace

AccessRules accessRules(const std::string& proc) {
  AccessRules rules;
  std::ifstream(proc + "/sys/kernel/yama/ptrace_scope") >> rules.yamaScope;
  std::ifstream status(proc + "/self/status");
  for (std::string name; status >> name;) {
    if (name == "Seccomp:") {
      int mode = 0;
      status >> mode;
      rules.seccomp = mode == 2;
    } else if (name == "CapEff:") {
      uint64_t capabilities = 0;
      status >> std::hex >> capabilities >> std::dec;
      rules.privileged = (capabilities & kPtraceCapability) != 0;
    }
  }
  struct stat pids {};
  rules.initialPids = stat((proc + "/self/ns/pid").c_str(), &pids) == 0 &&
      pids.st_ino == kInitialPidNamespace;
  return rules;
}

std::string
refusedAccessText(uint32_t pid, int error, const AccessRules& rules) {
  return "large messages to and from " +
      (pid == 0 ? std::string("a process of this host")
                : "process " + std::to_string(pid)) +
      " take two copies, through shared memory, instead of one, because "
      "process_vm_readv of the process is refused: " +
      causeOf(pid, error, rules) + ". To get the faster way, " +
      remedyOf(pid, error, rules) + "; DLSLIME_CMA=off silences the warning";
}

pid_t processToPermit(pid_t parent, const AccessRules& rules) {
  constexpr int kDescendantsOnly = 1;
  const bool useful = rules.yamaScope == kDescendantsOnly && parent > 0;
  return useful && (parent != 1 || !rules.initialPids) ? parent : 0;
}

} // namespace dlslime::shm
