#pragma once

#include <cstdint>

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

} // namespace dlslime::shm
