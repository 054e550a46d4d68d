#pragma once

#include "engine/gpu/peer_gpus.h"
#include "engine/progress/completions.h"
#include "engine/progress/engine_mutex.h"
#include "interface/operation.h"

namespace dlslime {

// Copies the bytes of messages into the memory of receives. Under the engine's
// lock.
class ReceiveCopies {
 public:
  ReceiveCopies(PeerGpus& gpus, Completions& completions)
      : gpus_(gpus), completions_(completions) {}

  // Copies a payload to byte `offset` of the receive. Not ok: the receive's
  // memory can't be touched. A receive on a GPU ends once the GPU has the
  // bytes.
  Status copyIn(const OperationPtr& receive, uint64_t offset, ByteSpan payload)
      const REQUIRES(kEngineLock);
  // Copies a message that was kept as an arrival, and so is in no cache.
  Status copyKept(const OperationPtr& receive, ByteSpan message) const
      REQUIRES(kEngineLock);
  // Returns `status`, of a receive from `source`, in words for the caller.
  static Status
  whyFailed(const Operation& receive, int source, const Status& status);

 private:
  void upload(const OperationPtr& receive, uint64_t offset, ByteSpan payload)
      const REQUIRES(kEngineLock);

  PeerGpus& gpus_;
  Completions& completions_;
};

} // namespace dlslime
