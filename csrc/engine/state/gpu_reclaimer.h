#pragma once

#include <condition_variable>
#include <mutex>
#include <set>
#include <thread>

namespace dlslime {

class Accelerator;
class MemoryRegistrar;
struct EngineState;

// Has GPUs get back what nobody uses any more: memory of peers that is mapped
// here, and ours that the program has freed while peers have it mapped or NICs
// have it registered. To look for it takes calls of the driver, and to unmap
// it waits for GPUs: so a thread does it now and then, without any lock.
class GpuReclaimer {
 public:
  explicit GpuReclaimer(EngineState& state) : state_(state) {}
  ~GpuReclaimer() {
    stop();
  }
  void start(); // once, when the first GPU is met; any thread
  void stop(); // not under the engine's lock; idempotent
  // There is something to unmap. Any thread, also under the engine's lock.
  void wake();
  // All of it at once, by the calling thread, which does not hold the engine's
  // lock; peers are told what is not shared any more.
  void sweep();

 private:
  void run();
  void giveBack(Accelerator& gpus, bool unshared);
  std::set<MemoryRegistrar*> tellPeers(Accelerator& gpus, bool unshared);

  EngineState& state_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false; // guarded by mutex_, as the next two
  bool woken_ = false;
  std::thread thread_;
  bool owesNews_ = false; // to peers; under the engine's lock
};

} // namespace dlslime
