#include "engine/state/gpu_reclaimer.h"

#include <algorithm>

#include "base/clock.h"
#include "engine/progress/engine_thread.h"
#include "engine/state/engine_lock.h"
#include "engine/state/engine_state.h"

namespace dlslime {

namespace {
// Period of looks for freed memory; a look costs a driver call of less than a
// microsecond for each allocation.
constexpr milliseconds kPeriod{1000};
// Pause before the next try to unmap while streams are held back.
constexpr milliseconds kRetry{10};
} // namespace

void GpuReclaimer::start() {
  const MutexLock lock(mutex_);
  if (!stopping_) {
    try {
      thread_ = startEngineThread([this] { run(); });
    } catch (
        const Error& error) { // memory is given back later, at the engine's end
      logWarning(
          std::string("freed memory of GPUs is given back only when the engine "
                      "stops: ") +
          error.what());
    }
  }
}

void GpuReclaimer::stop() {
  std::thread ended;
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    changed_.notifyOne();
    ended.swap(thread_);
  }
  if (ended.joinable()) {
    ended.join();
  }
}

void GpuReclaimer::wake() {
  const MutexLock lock(mutex_);
  woken_ = true;
  changed_.notifyOne();
}

void GpuReclaimer::run() {
  auto& gpus = state_.needAccelerator();
  auto nextLook = deadlineAfter(kPeriod);
  bool unmapped = true;
  MutexLock lock(mutex_);
  while (!stopping_) {
    const auto until =
        unmapped ? nextLook : std::min(nextLook, deadlineAfter(kRetry));
    while (!stopping_ && !woken_ && changed_.waitUntil(lock, until)) {
    }
    woken_ = false;
    lock.unlock();
    surviveWantOfMemory("giving memory of GPUs back", [&] {
      unmapped = gpus.mappings().unmapUnused();
      if (Clock::now() >= nextLook) {
        giveBack(gpus, false);
        nextLook = deadlineAfter(kPeriod);
      }
    });
    lock.lock();
  }
}

void GpuReclaimer::sweep() {
  if (auto* const gpus = state_.accelerator()) {
    gpus->mappings()
        .unmapUnused(); // if impossible now, the thread unmaps later
    giveBack(*gpus, true);
  }
}

void GpuReclaimer::giveBack(Accelerator& gpus, bool unshared) {
  unshared |= gpus.sharing().dropFreed();
  for (auto* const registrar : tellPeers(gpus, unshared)) {
    registrar->dropFreed();
  }
}

// Tells peers to let go of memory no longer shared. Returns the registrars of
// open channels: memory may be registered by any of these.
std::set<MemoryRegistrar*> GpuReclaimer::tellPeers(
    Accelerator& gpus,
    bool unshared) {
  const EngineLock lock(state_);
  const auto open = state_.channels.those(
      [](const PeerChannel& channel)
          REQUIRES(kEngineLock) { return channel.open(); });
  unshared |= std::exchange(owesNews_, false);
  std::set<MemoryRegistrar*> registrars;
  for (const auto& member : open) {
    registrars.insert(member.channel->connection().registrar());
    owesNews_ |=
        unshared && !member.channel->parts()->out.shares().dropUnshared(gpus);
  }
  if (unshared) {
    state_.epoll.kick(); // posted messages have to be polled for
  }
  registrars.erase(nullptr);
  return registrars;
}

} // namespace dlslime
