#pragma once

#include <condition_variable>
#include <mutex>
#include <set>
#include <thread>

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
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false; // guarded by mutex_
  bool woken_ = false; // guarded by mutex_
  std::thread thread_; // started under mutex_, unless stopping_
  bool owesNews_ = false; // peers are still to be told of memory no longer
                          // shared; guarded by the engine's lock
};

} // namespace dlslime
