#pragma once

#include <cstdint>
#include <string>

namespace dlslime {

// Traffic of a group with a rank. Under the engine's lock.
struct Counters {
  uint64_t sentMessages = 0;
  uint64_t sentBytes = 0;
  uint64_t receivedMessages = 0;
  uint64_t receivedBytes = 0;
  uint64_t eagerMessages = 0; // sent eagerly
  uint64_t pushedMessages = 0; // sent by a push
  uint64_t rendezvousMessages = 0; // sent by rendezvous
  uint64_t cudaIpcMessages = 0; // received by a copy from GPU to GPU
  uint64_t gpuDirectMessages = 0; // received by a NIC into a GPU
  uint64_t readBytes = 0; // of our one-sided reads
  uint64_t writtenBytes = 0; // of our one-sided writes
};

// Traffic of a connection by one of its NICs.
struct NicTraffic {
  std::string nic; // "mlx5_0:1"
  uint64_t requests = 0; // given to the NIC
  uint64_t sentBytes = 0; // written or sent to the peer, with all headers
  uint64_t readBytes = 0; // read from the peer
};

} // namespace dlslime
