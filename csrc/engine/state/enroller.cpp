#include "engine/state/enroller.h"

#include <utility>
#include <vector>

#include "base/log.h"
#include "engine/progress/own_thread.h"
#include "engine/state/engine_state.h"
#include "engine/state/section.h"

namespace dlslime {

void Enroller::logRefused(const Region& region, const Error& error) {
  if (!said_.isNew(region.describe() + error.what())) {
    return; // peers may ask for a region again and again
  }
  logWarning(
      region.describe() + " can't be registered: " + error.what() +
      "; transfers are copied through messages, which is slower");
}

void Enroller::wake() {
  const std::lock_guard<std::mutex> guard(mutex_);
  wanted_ = true;
  if (!thread_.joinable() && !stopping_) {
    try {
      thread_ = startEngineThread([this] { run(); });
    } catch (const std::exception& error) { // tried again with the next region
      logInfo(
          std::string("connections wait while memory is registered: ") +
          error.what());
      state_.wakeWireUp(); // which stands in
    }
  }
  changed_.notify_one();
}

void Enroller::stop() {
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    stopping_ = true;
    changed_.notify_one();
  }
  if (thread_.joinable()) {
    thread_.join();
  }
}

void Enroller::run() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return wanted_ || stopping_; });
    if (stopping_) {
      return;
    }
    wanted_ = false;
    lock.unlock();
    serve();
    lock.lock();
  }
}

void Enroller::standIn() {
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    if (thread_.joinable() || stopping_ || !std::exchange(wanted_, false)) {
      return;
    }
  }
  serve();
}

void Enroller::serve() {
  constexpr const char* kWhat = "registering memory";
  std::vector<RegionTable::Wanted> wanted;
  {
    const Section section(state_);
    wanted = state_.regions.takeWanted();
  }
  for (const auto& entry : wanted) {
    std::shared_ptr<const void> result;
    Status status;
    doInSpiteOfWantOfMemory(kWhat, [&] { enroll(entry, result, status); });
    doInSpiteOfWantOfMemory(kWhat, [&] { tell(entry, result, status); });
    // Or deregister() would return while the NIC has its memory.
    result.reset();
    const Section section(state_);
    --entry.region->enrolling;
  }
}

void Enroller::enroll(
    const RegionTable::Wanted& wanted,
    std::shared_ptr<const void>& result,
    Status& status) {
  const auto& [region, registrar] = wanted;
  status = {}; // it may be the second try
  try {
    result = registrar->enroll(region->view());
  } catch (const std::exception& error) {
    status = statusOf(error);
    logRefused(*region, Error(status));
  }
}

// May be called again.
void Enroller::tell(
    const RegionTable::Wanted& wanted,
    const std::shared_ptr<const void>& result,
    const Status& status) {
  const auto& [region, registrar] = wanted;
  const Section section(state_);
  if (status.ok()) {
    region->keepEnrolled(registrar, result);
  } else {
    region->noteRefused(registrar);
  }
  const auto those = state_.channels.those(
      [registrar = wanted.registrar](const PeerChannel& channel) {
        return channel.open() && channel.registrar() == registrar;
      });
  for (const auto& member : those) {
    member.channel->onEnrolled(region, status);
  }
  state_.sleeper.kick(); // what has been posted is to be polled for
}

} // namespace dlslime
