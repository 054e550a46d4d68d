#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "base/bytes.h"

namespace dlslime {

class Accelerator;
struct MemoryView;

// The one who keeps memory alive, for those who want to remember something
// about it: an address alone may be other memory the next time.
class MemoryOwner {
 public:
  virtual ~MemoryOwner() = default;
  // The allocation that its views are parts of.
  virtual MemoryView allocation() const = 0;
  // Has `ended` called just before the allocation is freed or replaced, on the
  // thread that does so, even after this object is gone. False: nobody can
  // tell when that is, so nothing may be remembered.
  virtual bool onEnd(std::function<void()> ended) = 0;
};

// Memory of this process that somebody else owns; see Operation for who
// keeps it alive.
struct MemoryView {
  static constexpr int kProcessor = -1;

  std::byte* data = nullptr;
  size_t size = 0;
  MemoryOwner* owner = nullptr; // null: nothing may be remembered about it
  // The GPU that it is on: then processors can't get at it.
  int device = kProcessor;
  // What serves that GPU, once the engine has the memory.
  Accelerator* accelerator = nullptr;
  // Nobody may write it, and perhaps nobody can.
  bool readOnly = false;
  // It may be read-only or gone when it is touched (mapped files, memory that
  // others protect): threads of ours copy it by guarded_copy.h alone.
  bool mayFault = false;

  bool onDevice() const {
    return device != kProcessor;
  }
};

// Memory of the peer, as the peer's Connection named it. Only Connections of
// the same route know what the numbers mean.
struct RemoteBuffer {
  static constexpr size_t kMostKeys = 3; // what a header has room for
  // In place of a slot: memory that only its owner can read, and memory of a
  // GPU; keys 0 and 1 are the id of its allocation, which was shared before.
  static constexpr uint16_t kUnreachable = 0xffff;
  static constexpr uint16_t kOnGpu = 0xfffe;

  uint64_t address = 0;
  std::array<uint32_t, kMostKeys> keys{}; // one for each NIC; 0: none
  uint16_t slot = 0; // of memory that is offered for a push
};

// One piece of a one-sided transfer; never empty.
struct Piece {
  std::byte* local = nullptr;
  uint64_t remote = 0; // address in the peer
  size_t size = 0;
};

// What is held beside the memory of its users, in bytes.
struct MemoryUse {
  uint64_t idle = 0; // trim() gives it back
  uint64_t lasting = 0; // for as long as the connection lasts, or is in use
  MemoryUse& operator+=(const MemoryUse& other) {
    idle += other.idle;
    lasting += other.lasting;
    return *this;
  }
};

} // namespace dlslime
