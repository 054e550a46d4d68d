#pragma once

#include <cstdint>

#include "interface/transport.h"

// Cross-memory attach: copying between two processes' memories with one
// system call and no shared segment.
namespace dlslime::shm {

// CopyJob::run functions.
int readFromPeer(const CopyJob& job);
int writeToPeer(const CopyJob& job);

// Whether the kernel lets this process at the memory of that one (Yama,
// containers, users): 0, or the errno of an attempt, which touches no memory:
// where the other process can choose an address, it can make a read of it wait
// for ever (userfaultfd). `pid` is of our namespace; 0: in none.
int accessProblem(uint32_t pid);

} // namespace dlslime::shm
