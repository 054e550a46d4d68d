#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "committed/driver.h"

namespace committed {

constexpr uint32_t kSlots = 256; // messages of one direction under way at most
constexpr size_t kEagerBytes = 8 << 10;

// The words of one message. A word is reached when it has the message's
// number or a later one.
struct Words {
  std::atomic<uint32_t> ready; // by the sender's stream: the bytes are there
  std::atomic<uint32_t> room; // by the receiver's: its memory is free
  std::atomic<uint32_t> done; // by the copy's stream: it is over
  std::atomic<uint32_t> set; // by a processor of the receiver
};
static_assert(sizeof(Words) == 16);

// What the hosts of one direction tell each other; messages are numbered from
// one, and matched in that order.
struct Direction {
  std::atomic<uint32_t> posted; // sends
  std::atomic<uint32_t> wanted; // that the sender waits for
  std::atomic<uint32_t> expected; // receives
  std::atomic<uint32_t> committed; // copies that the receiver's driver has
  uint32_t offsets[kSlots]; // in the sender's memory
  uint32_t sizes[kSlots];
  Words words[kSlots];
};

// Memory of both processes, registered with the driver by each of them.
struct Shared {
  std::atomic<uint32_t> arrived; // at barriers, since the beginning
  std::atomic<uint32_t> failed;
  IpcMemoryHandle handles[2]; // of the ranks' memory
  double times[2][64]; // of what a rank has measured, for the parent
  Direction to[2]; // by the receiver's rank
  // Of small messages, by the receiver's rank: what the sender's stream has
  // copied out, and what a processor of the receiver has copied from there.
  alignas(4096) std::byte slots[2][kSlots][kEagerBytes];
  std::byte filled[2][kSlots][kEagerBytes];
};

} // namespace committed
