#pragma once

#include <set>
#include <thread>

#include "base/threads/mutex.h"

namespace dlslime {

class Accelerator;
class MemoryRegistrar;
struct EngineState;

// Gives unused memory of GPUs back: peers' memory mapped in this process, and
// memory that the program has freed while peers have it mapped or NICs have it
// registered. Looking for such memory takes calls of the driver, and unmapping
// waits for GPUs, so a thread does both from time to time, outside the engine's
// lock.
class GpuReclaimer {
 public:
  explicit GpuReclaimer(EngineState& state) : state_(state) {}
  ~GpuReclaimer() {
    stop();
  }
  void start(); // called once, at the first use of a GPU; any thread
  void stop(); // not under the engine's lock; idempotent
  // Wakes the thread because some memory can be unmapped. Any thread, also
  // under the engine's lock.
  void wake();
  // Gives all unused memory back at once, on the calling thread and without the
  // engine's lock, and tells peers of memory no longer shared.
  void sweep();

 private:
  void run();
  void giveBack(Accelerator& gpus, bool unshared);
  std::set<MemoryRegistrar*> tellPeers(Accelerator& gpus, bool unshared);

  EngineState& state_;
  Mutex mutex_;
  Condition changed_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  bool woken_ GUARDED_BY(mutex_) = false;
  std::thread thread_ GUARDED_BY(mutex_); // not started once stopping_
  bool owesNews_ = false; // peers are still to be told of memory no longer
                          // shared; guarded by the engine's lock
};

} // namespace dlslime
