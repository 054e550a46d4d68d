#pragma once

#include <atomic>
#include <cstdint>

#include "transports/shm/copy_desk.h"
#include "transports/shm/ring.h"

namespace dlslime::shm {

// How many pulls of one direction may be shared at a time: enough to start
// the next ones while the last pieces of the first are still being copied.
constexpr uint32_t kDesks = 4;

enum class Access : uint32_t { kUnknown = 0, kGranted = 1, kDenied = 2 };

// The beginning of a connection's segment; zero-filled by the kernel, then
// the two rings' buffers. Index 0 is the initiator, 1 the other end: ring and
// desks [i] carry what end i sends.
struct Layout {
  // access[i]: whether end i may read and write the other's memory.
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
