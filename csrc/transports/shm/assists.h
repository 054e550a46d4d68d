#pragma once

#include <vector>

#include "interface/transport.h"
#include "transports/shm/layout.h"

namespace dlslime::shm {

// The sender's side of large messages: what the peer may pull, and the pieces
// of its pulls that we copy for it. Under the engine's lock.
class Assists {
 public:
  Assists(CopyDesk* desks, uint32_t peerPid) : desks_(desks), pid_(peerPid) {}

  void expose(uint64_t id, MemoryView view);
  void unexpose(uint64_t id);
  // Takes a piece of an open desk. False: none, or we may not write there.
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
  std::vector<Exposure> exposures_; // by the low half of the id, a slab index
};

} // namespace dlslime::shm
