// Part of Engine: whole groups (leaving, aborting, reporting).
#include <algorithm>
#include <thread>

#include "base/fork_guard.h"
#include "engine/engine.h"
#include "engine/state/engine_lock.h"

namespace dlslime {

namespace {
// Pause between looks at a connection coming up, or at messages still to be
// sent.
constexpr microseconds kLookPause{200};
} // namespace

void Engine::cancelLocked(
    Group& group,
    const OperationPtr& operation,
    const Status& why) {
  if (operation->done() || group.cancelHere(operation, why) ||
      operation->holder == nullptr) {
    return;
  }
  operation->holder->cancel(operation, why);
  if (operation->stage == Operation::Stage::kTransferring) {
    const auto transfer = std::static_pointer_cast<Transfer>(operation);
    if (transfer->note != nullptr && transfer->note->follower == transfer) {
      cancelLocked(group, transfer->note, why);
    }
  }
}

void Engine::cancel(
    Group& group,
    const OperationPtr& operation,
    const Status& why) {
  const EngineLock lock(state_);
  cancelLocked(group, operation, why);
}

void Engine::abandon(
    Group& group,
    const OperationPtr& operation,
    const Status& why) {
  const EngineLock lock(state_);
  cancelLocked(group, operation, why);
  state_.completions.finishEarly(operation, why);
}

void Engine::abort(Group& group, const Status& why) {
  const EngineLock lock(state_);
  group.close(why);
  for (const auto& operation : group.pending()) {
    cancelLocked(group, operation, why);
    state_.completions.finishEarly(operation, why);
  }
}

void Engine::linger(Group& group, TimePoint deadline) {
  std::vector<OperationPtr> pending;
  {
    const EngineLock lock(state_);
    pending = group.pending();
  }
  for (const auto& operation : pending) {
    if (operation->kind() != Operation::Kind::kReceive) {
      progress_.wait(*operation, deadline);
    }
  }
  if (!hasFailedPeer(group)) {
    group.addresses().awaitReaders(deadline);
  }
}

void Engine::lingerAll() {
  const auto deadline = deadlineAfter(state_.config.linger);
  std::vector<std::shared_ptr<Group>> groups;
  {
    const EngineLock lock(state_);
    groups = state_.groupRegistry.all();
  }
  for (const auto& group : groups) {
    linger(*group, deadline);
    group->addresses().close();
  }
  while (!allSent() && Clock::now() < deadline) {
    step(nullptr);
    std::this_thread::sleep_for(kLookPause);
  }
}

bool Engine::allSent() {
  const EngineLock lock(state_);
  const auto open = state_.channels.those(
      [](const PeerChannel& channel) { return channel.open(); });
  return std::all_of(open.begin(), open.end(), [](const auto& member) {
    return member.channel->allSent();
  });
}

void Engine::leave(Group& group) {
  if (inForkedChild()) {
    return;
  }
  linger(group, deadlineAfter(state_.config.linger));
  const bool aborted = isClosed(group);
  abort(
      group,
      Status(
          ErrorCode::kCancelled,
          "this process has shut down its process group"));
  const EngineLock lock(state_);
  group.leaveHeldTo(state_.strays);
  state_.groupRegistry.remove(group, aborted);
}

bool Engine::isClosed(Group& group) {
  const EngineLock lock(state_);
  return group.closed();
}

void Engine::keepGuest(const std::shared_ptr<Group>& guest) {
  if (inForkedChild()) {
    return;
  }
  {
    const EngineLock lock(state_);
    if (guest->options().hub->keep(guest)) {
      state_.groupRegistry.forgetIfGone(guest);
      return;
    }
  }
  leave(*guest);
}

void Engine::pair(
    Group& group,
    int rank,
    const AddressRecord& record,
    Group& spare) {
  const EngineLock lock(state_);
  const auto& link = group.link(rank);
  if (link.channel != nullptr) {
    const auto& came = link.channel->peer();
    if (came.instance != record.identity.instance ||
        link.remoteGroup != record.group) {
      throw Error(
          ErrorCode::kInvalidArgument,
          "a different endpoint (of pid " + std::to_string(came.pid) + " on " +
              came.host +
              ") has connected to this endpoint: make a new endpoint for " +
              "pid " + std::to_string(record.identity.pid) + " on " +
              record.identity.host);
    }
  }
  group.expect(record.identity.instance, record.group);
  Joins::setTaken(spare);
}

std::vector<PeerReport> Engine::report(Group& group) {
  const EngineLock lock(state_);
  return reportPeers(group);
}

PeerReport Engine::explain(
    Group& group,
    int rank,
    TimePoint deadline,
    const std::function<void()>& meanwhile) {
  std::vector<int> ranks;
  std::shared_ptr<Group> shared;
  {
    const EngineLock lock(state_);
    group.links().resolve(rank);
    group.links().takeUnresolved(ranks);
    shared = state_.groupRegistry.find(group.id());
  }
  if (shared && !ranks.empty()) {
    wireUp_.resolve(shared, ranks);
  }
  while (Clock::now() < deadline) {
    step(nullptr);
    if (meanwhile) {
      meanwhile();
    }
    {
      const EngineLock lock(state_);
      const auto& link = group.link(rank);
      if (group.closed()) {
        throw Error(group.closeReason());
      }
      if (link.state == Group::LinkState::kReady) {
        return reportPeer(group, rank);
      }
      if (link.state == Group::LinkState::kFailed) {
        // The route by which the peer was reached is still worth reporting.
        if (link.channel) {
          return reportPeer(group, rank);
        }
        throw Error(link.failure);
      }
    }
    std::this_thread::sleep_for(kLookPause);
  }
  throw Error(
      ErrorCode::kTimeout,
      group.nameOf(rank) + " has not been reached in time");
}

std::string Engine::describeLink(Group& group, const Operation& operation) {
  const EngineLock lock(state_);
  return dlslime::describeLink(group, operation);
}

std::string Engine::describePending(Group& group, size_t most) {
  const EngineLock lock(state_);
  return dlslime::describePending(group, most);
}

std::string Engine::describeFailures(Group& group) {
  const EngineLock lock(state_);
  return dlslime::describeFailures(group);
}

bool Engine::hasAbortedPeer(Group& group) {
  const EngineLock lock(state_);
  for (int rank = 0; rank < group.size(); ++rank) {
    if (group.link(rank).aborted) {
      return true;
    }
  }
  return false;
}

bool Engine::hasFailedPeer(Group& group) {
  const EngineLock lock(state_);
  for (int rank = 0; rank < group.size(); ++rank) {
    if (group.link(rank).state == Group::LinkState::kFailed) {
      return true;
    }
  }
  return false;
}

size_t Engine::connections() {
  const EngineLock lock(state_);
  return state_.channels.size();
}

size_t Engine::groups() {
  const EngineLock lock(state_);
  return state_.groupRegistry.size();
}

} // namespace dlslime
