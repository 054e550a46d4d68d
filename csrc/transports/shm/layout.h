#pragma once

#include <atomic>
#include <cstdint>

#include "transports/shm/copy_desk.h"
#include "transports/shm/ring.h"

namespace dlslime::shm {

// Number of pulls of a direction copied by both ends at a time: enough to start
// further pulls while the last pieces of the first pull are still being copied.
constexpr uint32_t kDesks = 4;

enum class Access : uint32_t { kUnknown = 0, kGranted = 1, kDenied = 2 };

// Beginning of a connection's segment, zero-filled by the kernel; the buffers
// of both rings follow. Index 0 is the initiator, 1 the acceptor: ring[i] and
// desk[i] carry messages sent by end i.
struct Layout {
  // access[i] says whether end i may read and write the memory of the peer.
  std::atomic<Access> access[2];
  RingControl ring[2];
  CopyDesk desk[2][kDesks];
};

constexpr size_t kLayoutBytes = 4096;
static_assert(sizeof(Layout) <= kLayoutBytes);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

constexpr size_t segmentBytes(size_t ringBytes) {
  return kLayoutBytes + 2 * ringBytes;
}

} // namespace dlslime::shm
