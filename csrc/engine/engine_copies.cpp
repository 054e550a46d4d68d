// Part of Engine: copies between memory of this process and memory of peers,
// and the choice of the thread for each copy.
#include "engine/engine.h"
#include "engine/progress/engine_thread.h"
#include "engine/state/engine_lock.h"

namespace dlslime {

namespace {
// Copies made by a step before the next look at messages.
constexpr int kCopiesPerStep = 4;
} // namespace

// A peer can keep a copy from returning, so a thread of the program makes only
// copies of the pair that it waits for; the Copier makes all further copies.
bool Engine::step(const Operation* awaited) {
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

bool Engine::help() {
  EngineLock lock(state_);
  return giveCopy(lock);
}

// Returns the channel that serves the operation; null if no channel does. Under
// the lock.
PeerChannel* Engine::channelOf(const Operation& operation) {
  auto* const to = state_.groupRegistry.channelTo(operation);
  return to != nullptr ? to : state_.channels.serving(operation);
}

// Gives a copy to the Copier. False: no copy is to be made, or the Copier is
// not free. If the Copier can start no thread, the calling thread leaves `lock`
// and makes the copy.
bool Engine::giveCopy(EngineLock& lock) {
  if (copier_.busy() && !copier_.free()) {
    return false;
  }
  ClaimedCopy copy;
  copy.channel = state_.channels.claimCopy(copy.job);
  if (!copy.channel) {
    return false;
  }
  copy.channel->noteGiven();
  if (!copier_.give(copy)) {
    copy.channel->noteBack();
    lock.leave();
    runCopies(copy.job, std::move(copy.channel));
  }
  return true;
}

std::optional<ClaimedCopy> Engine::finishCopy(
    const ClaimedCopy& made,
    bool more) {
  std::optional<ClaimedCopy> next;
  {
    const EngineLock lock(state_);
    made.channel->noteBack();
    made.channel->finishCopy(made.job);
    if (more) {
      next.emplace();
      next->channel = state_.channels.claimCopy(next->job);
    }
    if (next && next->channel) {
      next->channel->noteGiven();
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

void Engine::runCopies(CopyJob job, std::shared_ptr<PeerChannel> channel) {
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

} // namespace dlslime
