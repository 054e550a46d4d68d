#include "engine/sweeper.h"

#include "core/clock.h"
#include "engine/engine_state.h"
#include "engine/section.h"

namespace dlslime {

namespace {
// A call of the driver takes less than a microsecond for each allocation.
constexpr milliseconds kPeriod{1000};
} // namespace

void Sweeper::start() {
  const std::lock_guard<std::mutex> guard(mutex_);
  if (!stopping_) {
    thread_ = std::thread([this] { run(); });
  }
}

void Sweeper::stop() {
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    stopping_ = true;
    changed_.notify_one();
  }
  if (thread_.joinable()) {
    thread_.join();
  }
}

void Sweeper::run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!changed_.wait_for(lock, kPeriod, [this] { return stopping_; })) {
    lock.unlock();
    sweep();
    lock.lock();
  }
}

void Sweeper::sweep(bool unshared) {
  auto* const gpus = state_.accelerator();
  if (gpus == nullptr) {
    return;
  }
  unshared |= gpus->sweep();
  for (auto* const registrar : tellPeers(*gpus, unshared)) {
    registrar->dropFreed();
  }
}

// Has them let go of it. Those with which memory may be registered.
std::set<MemoryRegistrar*> Sweeper::tellPeers(
    Accelerator& gpus,
    bool unshared) {
  const Section section(state_);
  const auto open = state_.channels.those(
      [](const PeerChannel& channel) { return channel.open(); });
  unshared |= std::exchange(owesNews_, false);
  std::set<MemoryRegistrar*> registrars;
  for (const auto& member : open) {
    registrars.insert(member.channel->registrar());
    owesNews_ |= unshared && !member.channel->out().dropUnshared(gpus);
  }
  if (unshared) {
    state_.sleeper.kick(); // what has been posted is to be polled for
  }
  registrars.erase(nullptr);
  return registrars;
}

} // namespace dlslime
