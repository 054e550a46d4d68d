#pragma once

#include <set>

#include "engine/progress/engine_mutex.h"
#include "engine/two_sided/sequenced_output.h"
#include "engine/wire/gpu_messages.h"
#include "interface/accelerator.h"

namespace dlslime {

// Allocations of this process's GPUs that the peer has been told of, so that
// the peer can map them. Under the engine's lock.
class GpuShares {
 public:
  explicit GpuShares(SequencedOutput& output) : output_(output) {}

  // Names memory of a GPU for copies by the peer, and before that shares the
  // allocations. False: no room for the Shares now.
  [[nodiscard]] bool show(
      Accelerator& gpus,
      const MemoryView& view,
      RemoteBuffer& memory) REQUIRES(kEngineLock);
  // Tells the peer to unmap allocations not shared any more. False: no room to
  // tell of all.
  bool dropUnshared(Accelerator& gpus) REQUIRES(kEngineLock);
  // Adds the ids of the view's allocations, if the peer knows any.
  void addShown(const MemoryView& view, std::set<uint64_t>& ids) const
      REQUIRES(kEngineLock);
  // Returns the description of an allocation that the peer asks for again;
  // empty unless still shared. Hands the descriptor over before, if asked to.
  Bytes describe(uint64_t id, bool handOver) const REQUIRES(kEngineLock);
  // Forgets all: what was told held for a connection that is gone.
  void clear() REQUIRES(kEngineLock) {
    shown_.clear();
  }

 private:
  SequencedOutput& output_;
  std::set<uint64_t> shown_; // known to the peer
  Accelerator* gpus_ = nullptr; // of the allocations in shown_
};

} // namespace dlslime
