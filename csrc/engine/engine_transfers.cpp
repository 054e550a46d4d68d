// The engine's part that is about one-sided transfers.
#include <thread>

#include "base/fork_guard.h"
#include "base/leak_on_purpose.h"
#include "base/memory/shared_pages.h"
#include "engine/engine.h"
#include "engine/state/engine_lock.h"

namespace dlslime {

namespace {
// What a posting thread copies itself before it returns, so that nobody need be
// woken for it.
constexpr size_t kMostInline = 64 * 1024;
// For peers to let go of what was lent to them when the engine ends.
constexpr milliseconds kLastRecall{1000};
constexpr milliseconds kLastRecallPause{2};
// Between looks whether peers have let go of a region.
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

// Under the lock: nobody gets it from now on, and who has it is asked for it.
void Engine::recall(Region& region) {
  region.closing = true;
  for (const auto& member : state_.channels.those(
           [](const PeerChannel& channel) { return channel.alive(); })) {
    member.channel->target().recall(region);
  }
}

// Under the lock, and again until it is over: another thread that waits for the
// same may have given up, and opened the region again. Throws Error: it can't
// be now.
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

// Under the lock: the peers that have not given the region back. Those that no
// group has to do with any more lose their connection, and with it the region:
// nothing else would make a peer answer that does not.
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
            ", and no group is left with it"));
    state_.retireFailed();
  }
  return names;
}

// Under the lock, once there is no time left. Throws Error, which names those
// that have it.
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
                   " may still be transferring, and have not said that they "
                   "are done. If they never do, close the endpoints or "
                   "process groups with them, and deregister it again"));
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

// Before this process's memory goes. Who does not answer may still be copying:
// its share of the memory is never freed.
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

// On the caller's thread, before the lock is taken, as prepare().
void Engine::registerHere(Group& group, const Transfer& transfer) {
  auto* const registrar = group.registrar(transfer.peer());
  if (registrar == nullptr) {
    return; // nothing to do, or the route is not known yet
  }
  std::vector<RegionPtr> missing; // most often none
  {
    const EngineLock lock(state_);
    for (const auto& part : transfer.parts()) {
      if (!part.local->closing && !part.local->refusedBy(registrar) &&
          part.local->registration(registrar) == nullptr) {
        ++part.local->registering; // until no result of ours is left
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
      if (region->accelerator() != nullptr) { // once
        state_.registrationThread.logRefused(*region, error);
        const EngineLock lock(state_);
        region->noteRefused(registrar);
      } // else it shows when the transfer is started
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
  for (bool more = true; more;) { // what is claimed must be done
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
