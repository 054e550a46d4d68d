#include "engine/core/driver.h"

#include <thread>

#include "engine/progress/engine_thread.h"
#include "engine/progress/pacing.h"

namespace dlslime {

namespace {
// Copies made by a step before the next look at messages.
constexpr int kCopiesPerStep = 4;
// Time at the engine's end for copies hindered by a peer.
constexpr milliseconds kCopyPatience{1000};
// The first token of wakeFds(), by transport index.
constexpr uint64_t kWakeTokens = 1ULL << 62;
} // namespace

Driver::Driver(EngineState& state)
    : state_(state),
      progress_(
          *this,
          state.epoll,
          state.config.spin.value_or(Pacing::ofMachine().spin),
          Progress::kMostSpin,
          state.config.tick.value_or(Pacing::ofMachine().tick)),
      copier_([this](const ClaimedCopy& made, bool more) {
        return finishCopy(made, more);
      }) {
  state_.notifyDone = [this] { progress_.notifyDone(); };
  uint64_t token = kWakeTokens;
  for (const auto& transport : state_.transports.all()) {
    if (auto* const wake = transport->wakeSource()) {
      for (const int fd : wake->wakeFds()) {
        state_.epoll.add(fd, token);
      }
    }
    ++token;
  }
}

void Driver::stop() {
  progress_.stop();
  copier_.stop(kCopyPatience);
}

// A peer can keep a copy from returning, so a thread of the program makes only
// copies of the pair that it waits for; the Copier makes all further copies.
bool Driver::step(const Operation* awaited) {
  if (!state_.mutex.lockIfUnwanted()) {
    return false;
  }
  EngineLock lock(state_, std::adopt_lock);
  const bool any =
      awaited != nullptr ? lookWhileAwaiting(*awaited) : lookAtAll();
  auto* const own = awaited != nullptr ? channelOf(*awaited) : nullptr;
  CopyJob job;
  if (own != nullptr && own->claimCopy(job)) {
    auto channel = own->shared_from_this();
    lock.leave();
    runCopies(job, std::move(channel));
    return true;
  }
  return giveCopy(lock) || any;
}

bool Driver::help() {
  EngineLock lock(state_);
  return giveCopy(lock);
}

// Returns the channel that serves the operation; null if no channel does. Under
// the lock.
PeerChannel* Driver::channelOf(const Operation& operation) {
  auto* const to = state_.groupRegistry.channelTo(operation);
  return to != nullptr ? to : state_.channels.serving(operation);
}

// Gives a copy to the Copier. False: no copy is to be made, or the Copier is
// not free. If the Copier can start no thread, the calling thread leaves `lock`
// and makes the copy.
bool Driver::giveCopy(EngineLock& lock) {
  if (copier_.busy() && !copier_.free()) {
    return false;
  }
  ClaimedCopy copy;
  copy.channel = state_.channels.claimCopy(copy.job);
  if (!copy.channel) {
    return false;
  }
  copy.channel->copies().noteGiven();
  if (!copier_.give(copy)) {
    copy.channel->copies().noteBack();
    lock.leave();
    runCopies(copy.job, std::move(copy.channel));
  }
  return true;
}

std::optional<ClaimedCopy> Driver::finishCopy(
    const ClaimedCopy& made,
    bool more) {
  std::optional<ClaimedCopy> next;
  {
    const EngineLock lock(state_);
    made.channel->copies().noteBack();
    made.channel->finishCopy(made.job);
    if (more) {
      next.emplace();
      next->channel = state_.channels.claimCopy(next->job);
    }
    if (next && next->channel) {
      next->channel->copies().noteGiven();
    } else {
      next.reset();
      surviveWantOfMemory("progress", [this] {
        state_.mutex.assertHeld();
        lookAtAll();
      });
    }
  }
  progress_.wake(); // as in runCopies()
  return next;
}

void Driver::runCopies(CopyJob job, std::shared_ptr<PeerChannel> channel) {
  bool more = true;
  for (int i = 0; more; ++i) {
    job.error = job.run(job);
    const EngineLock lock(state_);
    channel->finishCopy(job);
    more = i < kCopiesPerStep && channel->claimCopy(job);
    if (!more) {
      channel.reset(); // under the lock
    }
  }
  // The copy may have been the last piece of a transfer awaited by a sleeping
  // thread, and the calling thread may not look again.
  progress_.wake();
}

bool Driver::lookAtAll() {
  return lookAtRest(state_.channels.looks().lookAtAll(kMessagesPerPoll));
}

// A thread that waits looks often, so a few quiet channels each time are
// enough.
bool Driver::lookWhileAwaiting(const Operation& operation) {
  auto& looks = state_.channels.looks();
  auto* const awaited = state_.groupRegistry.channelTo(operation);
  const bool any = looks.lookFor(awaited, kMessagesPerPoll);
  return lookAtRest(looks.lookInTurn(kMessagesPerPoll) || any);
}

bool Driver::lookFor(const Operation& operation, int most) {
  auto* const awaited = state_.groupRegistry.channelTo(operation);
  return lookAtRest(state_.channels.looks().lookFor(awaited, most));
}

// Ends a look, in which the channels have had news if `any`.
bool Driver::lookAtRest(bool any) {
  if (auto* const gpus = state_.accelerator()) {
    any |= lookAtGpus(*gpus);
  }
  if (any && state_.channels.someOver()) {
    state_.retireFailed();
  }
  return any;
}

// Polls copies of GPUs and posts held operations whose streams have come to
// them; true if anything happened. Under the lock.
bool Driver::lookAtGpus(Accelerator& gpus) {
  bool any = gpus.copying() && gpus.poll();
  bool held = false;
  if (state_.watchesGpus.load(std::memory_order_relaxed)) {
    for (const auto& [id, group] : state_.groupRegistry.groups()) {
      any |= group->holds() && group->postHeld();
      held |= group->holds();
    }
    state_.strays.takeReached();
    held |= !state_.strays.empty();
  }
  watchGpus(held);
  return any;
}

// Decides whether GPUs have to be looked at from time to time. `held`:
// operations wait for streams. Under the lock.
void Driver::watchGpus(bool held) {
  const auto* const gpus = state_.accelerator();
  const bool watch = held || (gpus != nullptr && gpus->copying());
  if (watch == state_.watchesGpus.load(std::memory_order_relaxed)) {
    return;
  }
  state_.watchesGpus.store(watch, std::memory_order_seq_cst);
  if (watch) {
    progress_.attend();
  }
}

bool Driver::endsSoon() {
  if (!state_.mutex.lockIfUnwanted()) {
    return false;
  }
  const EngineLock lock(state_, std::adopt_lock);
  return state_.channels.endsSoon();
}

bool Driver::beginSleep() {
  for (const auto& transport : state_.transports.all()) {
    if (auto* const wake = transport->wakeSource()) {
      wake->beginSleep();
    }
  }
  EngineLock lock(state_);
  const bool any = lookAtAll();
  return !giveCopy(lock) && !any;
}

void Driver::endSleep() {
  for (const auto& transport : state_.transports.all()) {
    if (auto* const wake = transport->wakeSource()) {
      wake->endSleep();
    }
  }
}

void Driver::onReady(const std::vector<uint64_t>& tokens) {
  for (const auto token : tokens) {
    if (token >= kWakeTokens) {
      state_.transports.all()[token - kWakeTokens]
          ->wakeSource()
          ->drainWakeFds();
      continue;
    }
    const EngineLock lock(state_);
    state_.channels.onSocket(token);
    state_.retireFailed();
  }
}

// Polls until all copies of GPUs, and so the operations that own the copies,
// have ended: at the engine's end no thread looks any more.
void Driver::drainGpus() {
  while (state_.accelerator() != nullptr && state_.accelerator()->copying()) {
    const EngineLock lock(state_);
    state_.accelerator()->poll();
    std::this_thread::yield();
  }
}

} // namespace dlslime
