// The engine's part that is about copies between this process's memory and that
// of its peers: which thread makes which.
#include "engine/engine.h"
#include "engine/progress/engine_thread.h"
#include "engine/state/engine_lock.h"

namespace dlslime {

namespace {
// Copies that one step makes before it looks at messages again.
constexpr int kCopiesPerStep = 4;
} // namespace

// A peer can keep a copy from returning: a thread of the program makes those of
// the pair that it waits for, and the Copier all others.
bool Engine::step(const Operation* awaited) {
  EngineLock lock(state_, EngineLock::IfUnwanted{});
  if (!lock) {
    return false;
  }
  const bool any = lookLocked();
  const auto* const own = awaited != nullptr ? channelOf(*awaited) : nullptr;
  CopyJob job;
  auto channel = own != nullptr ? state_.channels.claimCopy(job, own) : nullptr;
  if (channel) {
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

// Under the lock.
const PeerChannel* Engine::channelOf(const Operation& operation) {
  const auto* const to = state_.groupRegistry.channelTo(operation);
  return to != nullptr ? to : state_.channels.serving(operation);
}

// True: there was a copy, and the Copier was free. Where it can have no thread
// this one makes the copy, and the section has been left.
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
      surviveWantOfMemory("progress", [this] { lookLocked(); });
    }
  }
  progress_.wake(); // as in runCopies()
  return next;
}

void Engine::runCopies(CopyJob job, std::shared_ptr<PeerChannel> channel) {
  const auto* const only = channel.get();
  for (int i = 0;; ++i) {
    job.error = job.run(job);
    const EngineLock lock(state_);
    channel->finishCopy(job);
    channel =
        i < kCopiesPerStep ? state_.channels.claimCopy(job, only) : nullptr;
    if (!channel) {
      break;
    }
  }
  // It may have been the last piece of a transfer that a sleeping thread waits
  // for, and we may not look again.
  progress_.wake();
}

} // namespace dlslime
