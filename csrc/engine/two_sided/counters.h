#pragma once

#include <cstdint>

namespace dlslime {

// Traffic of one group with one peer. Under the engine's lock.
struct Counters {
  uint64_t sentMessages = 0;
  uint64_t sentBytes = 0;
  uint64_t receivedMessages = 0;
  uint64_t receivedBytes = 0;
  uint64_t eagerMessages = 0; // of those sent
  uint64_t pushedMessages = 0; // of those sent: written where they belong
  uint64_t rendezvousMessages = 0; // of those sent: announced, then pulled
  uint64_t cudaIpcMessages = 0; // of those received: from GPU to GPU
  uint64_t gpuDirectMessages = 0; // of those received: by a NIC into a GPU's
  uint64_t readBytes = 0; // by one-sided transfers of ours
  uint64_t writtenBytes = 0;
};

} // namespace dlslime
