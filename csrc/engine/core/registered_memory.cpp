#include "engine/core/registered_memory.h"

#include "base/leak_on_purpose.h"
#include "base/memory/shared_pages.h"
#include "engine/core/forked_child.h"

namespace dlslime {

namespace {
// Time at the engine's end for peers to give lent regions back.
constexpr milliseconds kLastRecall{1000};

// Ends when a region has been returned by all peers and devices, or has been
// opened again.
class RegionChange final : public Operation {
 public:
  RegionChange() : Operation(Kind::kRead, kAnySource, 0, {}) {}
};

// Returns the next change of the region, which ends at once if the region has
// been returned.
OperationPtr changeOf(Completions& completions, Region& region)
    REQUIRES(kEngineLock) {
  auto operation = std::make_shared<RegionChange>();
  if (region.returned()) {
    completions.finish(operation, {});
    return operation;
  }
  // Further threads may wait already.
  region.onChange =
      [&completions, operation, earlier = std::move(region.onChange)]()
          REQUIRES(kEngineLock) {
            completions.finish(operation, {});
            if (earlier) {
              earlier();
            }
          };
  return operation;
}
} // namespace

RegionPtr RegisteredMemory::registerMemory(
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

void RegisteredMemory::deregister(const RegionPtr& region, TimePoint deadline) {
  refuseInForkedChild();
  Region::Remains remains; // freed outside of the lock
  driver_.step(nullptr); // what has come may end the use of the region
  for (;;) {
    OperationPtr change;
    {
      const EngineLock lock(state_);
      if (region->gone) {
        return;
      }
      beginDeregister(*region);
      if (region->returned()) {
        region->gone = true;
        state_.regions.remove(*region);
        remains = region->takeRemains();
        break;
      }
      if (Clock::now() >= deadline) {
        requireGivenBack(*region);
      }
      change = changeOf(state_.completions, *region);
    }
    driver_.progress().wait(*change, deadline);
  }
  remains = {};
  forgetMappings();
}

// Recalls the region. Called under the lock, and again until the region is
// gone: a second thread deregistering the same region may have given up and
// opened the region again. Throws Error if transfers of this process use the
// region.
void RegisteredMemory::beginDeregister(Region& region) {
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

// Stops lending the region and asks the peers that have the region to give it
// back. Under the lock.
void RegisteredMemory::recall(Region& region) {
  region.closing = true;
  for (const auto& member : state_.channels.those(
           [](const PeerChannel& channel)
               REQUIRES(kEngineLock) { return channel.alive(); })) {
    member.channel->parts()->target.recall(region);
  }
}

// Returns the names of the peers that have not given the region back. A peer
// without any group left loses its connection, and with it the region: nothing
// else would make a silent peer give a region back. Under the lock.
std::vector<std::string> RegisteredMemory::borrowersOf(const Region& region) {
  std::vector<std::string> names;
  for (const auto& [key, contact, channel] :
       state_.channels.those([&](const PeerChannel& one) REQUIRES(kEngineLock) {
         return one.alive() && one.parts() != nullptr &&
             one.parts()->lends(region);
       })) {
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
void RegisteredMemory::requireGivenBack(Region& region) {
  const auto borrowers = borrowersOf(region);
  if (borrowers.empty() && region.returned()) {
    return;
  }
  region.reopen();
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

// Recalls all lent regions before the memory of this process goes. A peer that
// does not answer may still be copying, so memory lent to such a peer is never
// freed.
void RegisteredMemory::recallAll() {
  const auto deadline = deadlineAfter(kLastRecall);
  std::vector<RegionPtr> lent;
  std::vector<OperationPtr> changes;
  {
    const EngineLock lock(state_);
    lent = state_.regions.lent();
    for (const auto& region : lent) {
      recall(*region);
      changes.push_back(changeOf(state_.completions, *region));
    }
  }
  for (const auto& operation : changes) {
    driver_.progress().wait(*operation, deadline);
  }
  const EngineLock lock(state_);
  for (const auto& region : lent) {
    if (region->lent()) {
      leakOnPurpose(region->takeRemains().keeper);
    }
  }
}

} // namespace dlslime
