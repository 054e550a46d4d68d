#pragma once

#include <cstdint>

#include "core/transport.h"

// Cross-memory attach: copying between two processes' memories with one
// system call and no shared segment.
namespace dlslime::shm {

// CopyJob::run functions.
int readFromPeer(const CopyJob& job);
int writeToPeer(const CopyJob& job);

// A random word that peers try to read, to find out by doing whether this
// kernel lets them (Yama, containers, users, PID namespaces).
struct ProbeWord {
  uint64_t address = 0;
  uint64_t value = 0;
};

// 0, or the errno of the attempt; ESRCH also when another process answers to
// this pid in our namespace.
int probePeer(uint32_t pid, const ProbeWord& word);

} // namespace dlslime::shm
