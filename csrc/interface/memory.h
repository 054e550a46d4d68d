#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "base/bytes.h"

namespace dlslime {

class Accelerator;
struct MemoryView;

// Keeps memory alive, and tells before the memory goes. Routes remember
// registrations only of memory with an owner: by the next time, an address
// alone may belong to different memory.
class MemoryOwner {
 public:
  virtual ~MemoryOwner() = default;
  // Returns the whole allocation containing the owner's views.
  virtual MemoryView allocation() const = 0;
  // Has `ended` called just before the allocation is freed or replaced, on the
  // freeing thread, even after the owner object is gone. Returns false if the
  // end can't be told, and then nothing may be remembered.
  virtual bool onEnd(std::function<void()> ended) = 0;
};

// View of memory of the process, without ownership: see Operation and Region
// for the lifetime.
struct MemoryView {
  static constexpr int kProcessor = -1;

  std::byte* data = nullptr;
  size_t size = 0;
  MemoryOwner* owner = nullptr; // null: nothing may be remembered
  // GPU holding the memory, out of reach for processors; or kProcessor.
  int device = kProcessor;
  // Accelerator of the GPU; set once the engine has the memory.
  Accelerator* accelerator = nullptr;
  // The memory must not be written, and is perhaps not writable.
  bool readOnly = false;
  // The memory may be read-only or gone when touched (mapped files, memory
  // protected by the program): our threads read and write it only by
  // guarded_copy.h and by system calls.
  bool mayFault = false;

  bool onDevice() const {
    return device != kProcessor;
  }
};

// Memory of the peer, named by the peer's Connection. Only the route knows the
// meaning of the numbers, except for the two special slots.
struct RemoteBuffer {
  static constexpr size_t kMostKeys = 3; // limited by the room in a header
  // Slot of memory that only the owner can read.
  static constexpr uint16_t kUnreachable = 0xffff;
  // Slot of memory of a GPU; keys 0 and 1 are the id of the allocation, shared
  // before.
  static constexpr uint16_t kOnGpu = 0xfffe;

  uint64_t address = 0;
  std::array<uint32_t, kMostKeys> keys{}; // by number of the NIC; 0: no key
  uint16_t slot = 0; // number of memory offered for a push
};

// Piece of a one-sided transfer; never empty.
struct Piece {
  std::byte* local = nullptr;
  uint64_t remote = 0; // address in the peer
  size_t size = 0;
};

// Bytes held in addition to the memory of operations under way.
struct MemoryUse {
  uint64_t idle = 0; // given back by trim()
  uint64_t lasting = 0; // in use, or held until the connection ends
  MemoryUse& operator+=(const MemoryUse& other) {
    idle += other.idle;
    lasting += other.lasting;
    return *this;
  }
};

} // namespace dlslime
