#include "engine/state/engine_state.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/at_end.h"
#include "base/log.h"
#include "base/random.h"
#include "engine/bootstrap/wire_records.h"
#include "engine/state/engine_lock.h"

namespace dlslime {

namespace {
constexpr size_t kTokenBytes = 32;
}

EngineState::EngineState(const Config& settings)
    : config(settings),
      directory(RendezvousDirectory::open(
          config.rendezvousDir,
          config.rendezvousSetting)),
      self(makeIdentity(config.hostId, directory ? directory->id() : "")),
      token(randomBytes(kTokenBytes)),
      transports(config),
      regions(self, [this] { registrationThread.wake(); }),
      nudge(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  groupRegistry.leaveStraysTo(strays);
  setLogLevel(config.logLevel); // before anything is logged
  if (!nudge) {
    throwErrno("cannot create an eventfd", errno);
  }
}

Accelerator& EngineState::needAccelerator() {
  std::call_once(acceleratorMade_, [this] {
    ownAccelerator_ = makeAccelerator(config);
    ownAccelerator_->mappings().onUnused([this] { gpuReclaimer.wake(); });
    accelerator_.store(ownAccelerator_.get(), std::memory_order_release);
    gpuReclaimer.start();
  });
  return *ownAccelerator_;
}

void EngineState::wakeWireUp() {
  const uint64_t one = 1;
  [[maybe_unused]] const auto put = write(nudge.get(), &one, sizeof(one));
}

void EngineState::retireFailed() {
  const AtEnd wake([this, before = retired.size()]() REQUIRES(kEngineLock) {
    if (retired.size() > before) {
      wakeWireUp();
    }
  });
  channels.reap(retired);
}

std::shared_ptr<Group> EngineState::groupUsing(
    const PeerChannel& channel,
    int& rank) const {
  for (const auto& group : groupRegistry.all()) {
    for (rank = 0; rank < group->size(); ++rank) {
      if (!group->closed() && group->link(rank).channel.get() == &channel) {
        return group;
      }
    }
  }
  return nullptr;
}

std::shared_ptr<PeerChannel> EngineState::makeChannel(
    PeerIdentity peer,
    uint64_t unexpectedLimit) {
  return std::make_shared<PeerChannel>(
      groupRegistry,
      completions,
      regions,
      Outbound::Limits{
          config.eagerLimitBytes,
          std::min<uint64_t>(config.unexpectedLimitBytes, unexpectedLimit),
          config.announcedLimitBytes},
      std::move(peer));
}

} // namespace dlslime
