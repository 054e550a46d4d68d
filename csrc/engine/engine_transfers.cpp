// Part of Engine: one-sided transfers and registered memory.
#include <thread>

#include "base/fork_guard.h"
#include "base/leak_on_purpose.h"
#include "base/memory/shared_pages.h"
#include "engine/engine.h"
#include "engine/state/engine_lock.h"

namespace dlslime {

namespace {
// Largest transfer in bytes that the posting thread copies itself, so that no
// thread has to be woken.
constexpr size_t kMostInline = 64 * 1024;
// Time at the engine's end for peers to give lent regions back.
constexpr milliseconds kLastRecall{1000};
constexpr milliseconds kLastRecallPause{2};
// Pause between looks whether peers have given a region back.
constexpr microseconds kRecallPause{50};
} // namespace

RegionPtr Engine::registerMemory(
    MemoryView view,
    std::string name,
    std::shared_ptr<void> keeper) {
  refuseInForkedChild();
  if (view.onDevice()) {
    view.accelerator = &state_.needAccelerator();
    view.accelerator->meet(view.device);
  }
  SharedPages pages;
  if (view.mayFault && !view.onDevice()) {
    pages = sharedPagesOf(view.data, view.size);
  }
  const EngineLock lock(state_);
  return state_.regions.add(
      view, std::move(name), std::move(keeper), std::move(pages));
}

// Stops lending the region and asks the peers that have the region to give it
// back. Under the lock.
void Engine::recall(Region& region) {
  region.closing = true;
  for (const auto& member : state_.channels.those(
           [](const PeerChannel& channel) { return channel.alive(); })) {
    member.channel->target().recall(region);
  }
}

// Recalls the region. Called under the lock, and again until the region is
// gone: a second thread deregistering the same region may have given up and
// opened the region again. Throws Error if transfers of this process use the
// region.
void Engine::beginDeregister(Region& region) {
  if (region.uses != 0) {
    throw Error(
        ErrorCode::kInvalidArgument,
        region.describe() +
            " can't be deregistered: " + std::to_string(region.uses) +
            " transfers of this process use it; wait for them first");
  }
  if (!region.closing) {
    recall(region);
  }
}

// Returns the names of the peers that have not given the region back. A peer
// without any group left loses its connection, and with it the region: nothing
// else would make a silent peer give a region back. Under the lock.
std::vector<std::string> Engine::borrowersOf(const Region& region) {
  std::vector<std::string> names;
  for (const auto& [key, contact, channel] : state_.channels.those(
           [&](const PeerChannel& one) { return one.lends(region); })) {
    const auto& peer = channel->peer();
    const auto name = "pid " + std::to_string(peer.pid) + " on " + peer.host;
    int rank = 0;
    if (state_.groupUsing(*channel, rank)) {
      names.push_back(name);
      continue;
    }
    channel->fail(Status(
        ErrorCode::kTimeout,
        name + " has not given back " + region.describe() +
            ", and no group with the process is left"));
    state_.retireFailed();
  }
  return names;
}

// Throws Error naming the borrowers unless the region has been given back, and
// opens the region again. Called under the lock, after the deadline.
void Engine::requireGivenBack(Region& region) {
  const auto borrowers = borrowersOf(region);
  if (borrowers.empty() && region.lent == 0 && region.registering == 0) {
    return;
  }
  region.closing = false;
  constexpr size_t kMostNamed = 3;
  std::string names;
  for (size_t i = 0; i < borrowers.size() && i < kMostNamed; ++i) {
    names += (i == 0 ? "" : ", ") + borrowers[i];
  }
  if (borrowers.size() > kMostNamed) {
    names += " and " + std::to_string(borrowers.size() - kMostNamed) + " more";
  }
  throw Error(
      ErrorCode::kTimeout,
      region.describe() + " can't be deregistered: " +
          (names.empty() ? "this process is still registering it with a device "
                           "or copying it for a peer"
                         : names +
                   " have not given the region back, and may be transferring. "
                   "If "
                   "they never give the region back, close the endpoints or "
                   "process groups with them, and deregister the region "
                   "again"));
}

void Engine::deregister(const RegionPtr& region, TimePoint deadline) {
  refuseInForkedChild();
  Region::Remains remains; // freed outside of the lock
  for (;;) {
    step(nullptr);
    {
      const EngineLock lock(state_);
      if (region->gone) {
        return;
      }
      beginDeregister(*region);
      if (region->lent == 0 && region->registering == 0) {
        region->gone = true;
        state_.regions.remove(*region);
        remains = region->takeRemains();
        break;
      }
      if (Clock::now() >= deadline) {
        requireGivenBack(*region);
      }
    }
    std::this_thread::sleep_for(kRecallPause);
  }
  remains = {};
  forgetMappings();
}

// Recalls all lent regions before the memory of this process goes. A peer that
// does not answer may still be copying, so memory lent to such a peer is never
// freed.
void Engine::recallAll() {
  const auto deadline = deadlineAfter(kLastRecall);
  std::vector<RegionPtr> lent;
  {
    const EngineLock lock(state_);
    lent = state_.regions.lent();
    for (const auto& region : lent) {
      recall(*region);
    }
  }
  while (!lent.empty() && Clock::now() < deadline) {
    if (!step(nullptr)) {
      std::this_thread::sleep_for(kLastRecallPause);
    }
    const EngineLock lock(state_);
    std::erase_if(
        lent, [](const RegionPtr& region) { return region->lent == 0; });
  }
  const EngineLock lock(state_);
  for (const auto& region : lent) {
    leakOnPurpose(region->takeRemains().keeper);
  }
}

// Registers the local memory of a transfer on the caller's thread, before the
// lock is taken, as prepare() does.
void Engine::registerHere(Group& group, const Transfer& transfer) {
  auto* const registrar = group.links().registrar(transfer.peer());
  if (registrar == nullptr) {
    return; // nothing to do, or the route is not known yet
  }
  std::vector<RegionPtr> missing; // most often none
  {
    const EngineLock lock(state_);
    for (const auto& part : transfer.parts()) {
      if (!part.local->closing && !part.local->refusedBy(registrar) &&
          part.local->registration(registrar) == nullptr) {
        ++part.local->registering; // until our results are dropped
        missing.push_back(part.local);
      }
    }
  }
  if (missing.empty()) {
    return;
  }
  for (const auto& region : missing) {
    try {
      const auto result = registrar->registerRegion(region->view());
      const EngineLock lock(state_);
      region->keepRegistration(registrar, result);
    } catch (const Error& error) {
      if (region->accelerator() !=
          nullptr) { // a GPU registration is tried only once
        state_.registrationThread.logRefused(*region, error);
        const EngineLock lock(state_);
        region->noteRefused(registrar);
      } // otherwise the failure shows when the transfer is started
      break;
    }
  }
  const EngineLock lock(state_);
  for (const auto& region : missing) {
    --region->registering;
  }
}

void Engine::transfer(Group& group, const TransferPtr& transfer) {
  registerHere(group, *transfer);
  if (transfer->onDevice) {
    meetStream(*transfer);
  }
  progress_.noteLook();
  EngineLock lock(state_);
  group.post(transfer);
  CopyJob job;
  std::shared_ptr<PeerChannel> channel;
  if (transfer->stage == Operation::Stage::kTransferring &&
      !transfer->onDevice && transfer->totalBytes() <= kMostInline) {
    channel = group.link(transfer->peer()).channel;
    if (!channel->claimCopy(job)) {
      channel = nullptr;
    }
  }
  if (!channel) {
    afterPost(lock, group, *transfer);
    return;
  }
  lock.leave();
  for (bool more = true; more;) { // a claimed copy must be made
    job.error = job.run(job);
    const EngineLock again(state_);
    channel->finishCopy(job);
    if (channel->poll()) {
      state_.retireFailed();
    }
    more = !transfer->done() && channel->claimCopy(job);
  }
}

} // namespace dlslime
