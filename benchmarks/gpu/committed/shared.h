#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "committed/driver.h"

namespace committed {

constexpr uint32_t kSlots = 256; // most messages under way in a direction
constexpr size_t kEagerBytes = 8 << 10;

// The words of a message. A word is reached when it has the message's number or
// a later number.
struct Words {
  std::atomic<uint32_t> ready; // by the sender's stream: the bytes are there
  std::atomic<uint32_t> room; // by the receiver's stream: the memory is free
  std::atomic<uint32_t> done; // by the copy's stream, or by a processor: copied
  std::atomic<uint32_t> set; // by the sender's stream, for small messages
};
static_assert(sizeof(Words) == 16);

// Data exchanged by the hosts, for a direction; messages are numbered from one,
// and matched in order.
struct Direction {
  std::atomic<uint32_t> posted; // sends
  std::atomic<uint32_t> wanted; // by the sender: the last message waited for
  std::atomic<uint32_t> expected; // receives
  std::atomic<uint32_t> committed; // copies given to the receiver's driver
  uint32_t offsets[kSlots]; // in the sender's memory
  uint32_t sizes[kSlots];
  Words words[kSlots];
};

// Memory of both processes, registered with the driver by each.
struct Shared {
  std::atomic<uint32_t> arrived; // at barriers, since the beginning
  std::atomic<uint32_t> failed;
  IpcMemoryHandle handles[2]; // of the ranks' memory
  double times[2][64]; // results of the ranks, for the parent
  Direction to[2]; // by the receiver's rank
  // Small messages, by the receiver's rank: `slots` is written by the sender's
  // stream, `filled` by a processor of the receiver, from `slots`.
  alignas(4096) std::byte slots[2][kSlots][kEagerBytes];
  std::byte filled[2][kSlots][kEagerBytes];
};

} // namespace committed
