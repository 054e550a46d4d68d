#pragma once

#include <vector>

#include "interface/transport.h"
#include "transports/shm/layout.h"

namespace dlslime::shm {

// Sender's side of large messages: memory that the peer may pull, and pieces of
// its pulls copied by the local end. Under the engine's lock.
class Assists {
 public:
  Assists(CopyDesk* desks, uint32_t peerPid) : desks_(desks), pid_(peerPid) {}

  void expose(uint64_t id, MemoryView view);
  void unexpose(uint64_t id);
  // Takes a piece of an open desk; returns false if no desk has a piece of an
  // exposed message. Call only while the kernel permits access to the peer's
  // memory.
  bool claim(CopyJob& job);
  void finish(const CopyJob& job);

 private:
  struct Exposure {
    uint64_t id = 0;
    MemoryView view;
  };
  bool prepare(CopyDesk& desk, uint32_t piece, CopyJob& job);

  CopyDesk* const desks_;
  const uint32_t pid_;
  // Indexed by the low half of the id, a slab index.
  std::vector<Exposure> exposures_;
};

} // namespace dlslime::shm
