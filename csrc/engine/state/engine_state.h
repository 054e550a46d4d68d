#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "base/config.h"
#include "engine/bootstrap/rendezvous_directory.h"
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

// State shared by the engine's threads and all callers. A single lock guards
// everything that changes; the lock is held for a table look-up or a small
// copy, never across a system call that may wait.
struct EngineState {
  explicit EngineState(const Config& settings);

  const Config config;
  const std::shared_ptr<const RendezvousDirectory> directory; // or null
  const PeerIdentity self;
  const Bytes
      token; // a peer proves by the token to have read our address record

  EngineMutex mutex;
  Completions completions GUARDED_BY(kEngineLock);
  GroupRegistry groupRegistry GUARDED_BY(kEngineLock){completions, [this] {
                                                        wakeWireUp();
                                                      }};
  // Ended operations of groups already gone: streams may still touch the
  // memory.
  StreamGate strays GUARDED_BY(kEngineLock){completions};
  Transports transports;
  EpollWaiter epoll; // usable from any thread without the lock
  ChannelTable channels GUARDED_BY(kEngineLock){epoll};
  RegionTable regions GUARDED_BY(kEngineLock);
  // Connections waiting for the closer, since closing a connection may mean
  // joining threads.
  std::vector<ChannelTable::Retired> retired GUARDED_BY(kEngineLock);
  UniqueFd nudge; // eventfd waking the wire-up thread
  // True while operations wait for a stream or copies run at a GPU: no
  // descriptor tells of the end. Set under the lock, read by any thread.
  std::atomic<bool> watchesGpus{false};

  // Runs a thread of its own, and is guarded by a mutex of its own.
  RegistrationThread registrationThread{*this};
  GpuReclaimer gpuReclaimer{*this}; // runs a thread of its own, too
  ThreadHolder wireUpThread; // claimed by functions for this thread alone
  Closer closer{*this}; // used by the wire-up thread, and at the engine's end

  // Lets waiting threads see ended operations; called without the lock. Set
  // once by the engine, before any thread starts.
  std::function<void()> notifyDone = [] {};

  // Returns the accelerator, made at the first call. Any thread; throws Error.
  Accelerator& needAccelerator();
  // Null before the first needAccelerator(). Any thread.
  Accelerator* accelerator() const {
    return accelerator_.load(std::memory_order_acquire);
  }
  // Makes a channel to a peer that keeps up to `unexpectedLimit` bytes of our
  // eager messages.
  std::shared_ptr<PeerChannel> makeChannel(
      PeerIdentity peer,
      uint64_t unexpectedLimit) REQUIRES(kEngineLock);
  // Returns a group with a link over the channel, and the link's rank in
  // `rank`; null if no group has such a link. Under the lock.
  std::shared_ptr<Group> groupUsing(const PeerChannel& channel, int& rank) const
      REQUIRES(kEngineLock);
  // Retires severed connections and the connections of failed, idle channels.
  // Under the lock.
  void retireFailed() REQUIRES(kEngineLock);
  // Any thread.
  void wakeWireUp();

 private:
  std::once_flag acceleratorMade_;
  std::unique_ptr<Accelerator> ownAccelerator_;
  std::atomic<Accelerator*> accelerator_{nullptr};
};

} // namespace dlslime
