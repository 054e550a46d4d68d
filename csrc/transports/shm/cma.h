#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "interface/transport.h"

// Cross-memory attach (process_vm_readv, process_vm_writev): copies between the
// memories of two processes by a single system call and without a shared
// segment.
namespace dlslime::shm {

// Both functions implement CopyJob::run.
int readFromPeer(const CopyJob& job);
int writeToPeer(const CopyJob& job);

// Returns 0 if the kernel permits access to the memory of process `pid` (Yama,
// containers and users may forbid access), else the errno of an attempt. The
// attempt touches no memory: a process able to choose the address could make
// the read wait forever (userfaultfd). `pid` is a number of the caller's pid
// namespace; 0, for a process outside of the namespace, gives ESRCH.
int accessProblem(uint32_t pid);

// What the kernel tells about the reasons for a refused access.
struct AccessRules {
  int yamaScope = 0; // kernel.yama.ptrace_scope; 0: also without Yama
  bool seccomp = false; // a filter of system calls is active
  bool privileged = false; // has CAP_SYS_PTRACE
  bool initialPids = true; // not in a pid namespace of a container
};
// Reads the rules for this process below `proc` ("/proc").
AccessRules accessRules(const std::string& proc);

// Returns the sentence for the log about an access refused with `error`: the
// cost, the cause and the remedy.
std::string
refusedAccessText(uint32_t pid, int error, const AccessRules& rules);

// Returns the process to declare as permitted to access this process and whose
// descendants Yama then permits, too: the parent, so that the ranks started by
// one launcher reach each other; 0: none need be, or the parent is the init of
// the host, the ancestor of all processes. Under the scope 1, the default of
// Ubuntu and Debian, Yama permits only ancestors else.
pid_t processToPermit(pid_t parent, const AccessRules& rules);

} // namespace dlslime::shm
