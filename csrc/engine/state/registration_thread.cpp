#include "engine/state/registration_thread.h"

#include <utility>
#include <vector>

#include "base/log.h"
#include "engine/progress/engine_thread.h"
#include "engine/state/engine_lock.h"
#include "engine/state/engine_state.h"

namespace dlslime {

void RegistrationThread::logRefused(const Region& region, const Error& error) {
  if (!said_.isNew(region.describe() + error.what())) {
    return; // peers may ask for a region again and again
  }
  logWarning(
      region.describe() + " can't be registered: " + error.what() +
      "; transfers are copied through messages, which is slower");
}

void RegistrationThread::wake() {
  const MutexLock lock(mutex_);
  wanted_ = true;
  if (!thread_.joinable() && !stopping_) {
    try {
      thread_ = startEngineThread([this] { run(); });
    } catch (const std::exception& error) { // the next region tries again
      logInfo(
          std::string("connections wait while memory is registered: ") +
          error.what());
      state_.wakeWireUp(); // the wire-up thread stands in
    }
  }
  changed_.notifyOne();
}

void RegistrationThread::stop() {
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

void RegistrationThread::run() {
  MutexLock lock(mutex_);
  for (;;) {
    while (!wanted_ && !stopping_) {
      changed_.wait(lock);
    }
    if (stopping_) {
      return;
    }
    wanted_ = false;
    lock.unlock();
    serve();
    lock.lock();
  }
}

void RegistrationThread::standIn() {
  {
    const MutexLock lock(mutex_);
    if (thread_.joinable() || stopping_ || !std::exchange(wanted_, false)) {
      return;
    }
  }
  serve();
}

void RegistrationThread::serve() {
  constexpr const char* kWhat = "registering memory";
  std::vector<RegionTable::Wanted> wanted;
  {
    const EngineLock lock(state_);
    wanted = state_.regions.takeWanted();
  }
  for (const auto& entry : wanted) {
    RegistrationPtr result;
    Status status;
    doInSpiteOfWantOfMemory(
        kWhat, [&] { registerRegion(entry, result, status); });
    doInSpiteOfWantOfMemory(kWhat, [&] { tell(entry, result, status); });
    // Dropped before the end of registering is noted, since deregister() must
    // not return while the NIC has the memory.
    result.reset();
    const EngineLock lock(state_);
    entry.region->endRegistering();
  }
}

void RegistrationThread::registerRegion(
    const RegionTable::Wanted& wanted,
    RegistrationPtr& result,
    Status& status) {
  const auto& [region, registrar] = wanted;
  status = {}; // forgets an earlier try
  try {
    result = registrar->registerRegion(region->view());
  } catch (const std::exception& error) {
    status = statusOf(error);
    logRefused(*region, Error(status));
  }
}

// Keeps the result and tells the channels concerned. May be called again after
// running out of memory.
void RegistrationThread::tell(
    const RegionTable::Wanted& wanted,
    const RegistrationPtr& result,
    const Status& status) {
  const auto& [region, registrar] = wanted;
  const EngineLock lock(state_);
  if (status.ok()) {
    region->keepRegistration(registrar, result);
  } else {
    region->noteRefused(registrar);
  }
  const auto those = state_.channels.those(
      [registrar =
           wanted.registrar](const PeerChannel& channel) REQUIRES(kEngineLock) {
        return channel.open() && channel.connection().registrar() == registrar;
      });
  for (const auto& member : those) {
    member.channel->onRegistered(region, status);
  }
  state_.epoll.kick(); // posted messages have to be polled for
}

} // namespace dlslime
