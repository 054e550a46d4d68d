#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "base/config.h"
#include "engine/one_sided/region.h"
#include "engine/peer/channel_table.h"
#include "engine/peer/group_registry.h"
#include "engine/progress/completions.h"
#include "engine/progress/engine_mutex.h"
#include "engine/progress/epoll_waiter.h"
#include "engine/state/closer.h"
#include "engine/state/gpu_reclaimer.h"
#include "engine/state/registration_thread.h"
#include "interface/accelerator.h"
#include "transports/transports.h"

namespace dlslime {

// What the engine's two threads and its callers share. One lock for all that
// changes: it is held for the time of a table look-up or of one small copy,
// never for a system call that may wait.
struct EngineState {
  explicit EngineState(const Config& settings);

  const Config config;
  const PeerIdentity self;
  const Bytes token; // proves to us that a peer has read our record

  EngineMutex mutex;
  // Guarded by mutex:
  Completions completions;
  GroupRegistry groupRegistry{completions, [this] { wakeWireUp(); }};
  StreamGate strays{completions}; // what groups that are gone left behind
  Transports transports;
  EpollWaiter epoll; // its own methods are safe from any thread
  ChannelTable channels{epoll};
  RegionTable regions;
  // Connections that are over, for the closer: closing one may mean joining
  // threads.
  std::vector<ChannelTable::Retired> retired;
  UniqueFd nudge; // eventfd that wakes the wire-up thread
  // Something goes on at a GPU, of which no descriptor tells.
  std::atomic<bool> watchesGpus{false};

  // Its own thread; not guarded.
  RegistrationThread registrationThread{*this};
  GpuReclaimer gpuReclaimer{*this}; // the same
  Closer closer{*this}; // of the wire-up thread

  // Lets waiting threads see what is done; set once by the engine, before any
  // thread starts. Not under the lock.
  std::function<void()> notifyDone = [] {};

  // Made when it is needed for the first time. Any thread; throws Error.
  Accelerator& needAccelerator();
  // Null before that.
  Accelerator* accelerator() const {
    return accelerator_.load(std::memory_order_acquire);
  }
  // The peer keeps so many bytes of our eager messages.
  std::shared_ptr<PeerChannel> makeChannel(
      PeerIdentity peer,
      uint64_t unexpectedLimit);
  // Under the lock: a group with a link over this channel, and whose; or null.
  std::shared_ptr<Group> groupUsing(const PeerChannel& channel, int& rank)
      const;
  // Under the lock: retires the connections of failed, idle channels.
  void retireFailed();
  // Any thread.
  void wakeWireUp();

 private:
  std::once_flag acceleratorMade_;
  std::unique_ptr<Accelerator> ownAccelerator_;
  std::atomic<Accelerator*> accelerator_{nullptr};
};

} // namespace dlslime
