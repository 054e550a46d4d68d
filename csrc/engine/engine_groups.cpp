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
          "another endpoint (of pid " + std::to_string(came.pid) + " on " +
              came.host + ") has connected to this one: make a new one for " +
              "pid " + std::to_string(record.identity.pid) + " on " +
              record.identity.host);
    }
  }
  group.expect(record.identity.instance, record.group);
  state_.groupRegistry.setTaken(spare);
}

PeerReport Engine::reportOne(Group& group, int rank) {
  const auto& link = group.link(rank);
  PeerReport report;
  report.rank = rank;
  report.counters = link.counters;
  if (link.channel) {
    report.route = link.channel->route();
    auto info = link.channel->info();
    report.copy = info.copyName;
    report.devices = std::move(info.devices);
    report.replaced = link.channel->generation() - 1;
    report.rejected = link.channel->rejected();
    report.peer = link.channel->peer();
  }
  return report;
}

std::vector<PeerReport> Engine::report(Group& group) {
  const EngineLock lock(state_);
  std::vector<PeerReport> all;
  for (int rank = 0; rank < group.size(); ++rank) {
    if (group.link(rank).state != Group::LinkState::kUnresolved) {
      all.push_back(reportOne(group, rank));
    }
  }
  for (const auto& operation : group.pending()) {
    for (auto& peer : all) {
      if (peer.rank == operation->peer()) {
        ++(operation->kind() == Operation::Kind::kReceive ? peer.pendingReceives
                                                          : peer.pendingSends);
      }
    }
  }
  return all;
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
    group.touch(rank);
    group.takeUnresolved(ranks);
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
        return reportOne(group, rank);
      }
      if (link.state == Group::LinkState::kFailed) {
        // The route by which the peer was reached is still worth reporting.
        if (link.channel) {
          return reportOne(group, rank);
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
  const bool send = operation.kind() == Operation::Kind::kSend;
  if (operation.stage == Operation::Stage::kHeld) {
    return "it has not begun: the work before it in its stream is not done, or "
           "that before an earlier one of this tag";
  }
  if (operation.stage == Operation::Stage::kPulling ||
      operation.stage == Operation::Stage::kTransferring ||
      operation.stage == Operation::Stage::kQueued) {
    return "the transfer has started and does not proceed";
  }
  if (operation.peer() == Operation::kAnySource) {
    return "no rank has sent a message with this tag";
  }
  const auto& link = group.link(operation.peer());
  if (link.state == Group::LinkState::kReady) {
    return "the peer is connected by " + link.channel->route() +
        (send ? ", and has not said that it has taken the message: no matching "
                "receive was posted there, or it is being fetched"
              : ", no matching send was seen");
  }
  if (link.state == Group::LinkState::kFailed) {
    return link.failure.message();
  }
  return "the peer has not been reached: " +
      (link.problem.empty() ? "it has not been looked for yet" : link.problem);
}

std::string Engine::describePending(Group& group, size_t most) {
  const EngineLock lock(state_);
  const auto pending = group.pending();
  std::string text;
  for (size_t i = 0; i < pending.size() && i < most; ++i) {
    text += (i == 0 ? "" : ", ") + pending[i]->describe();
  }
  if (pending.size() > most) {
    text += " and " + std::to_string(pending.size() - most) + " more";
  }
  return text.empty() ? "nothing" : text;
}

std::string Engine::describeFailures(Group& group) {
  const EngineLock lock(state_);
  std::string text;
  for (int rank = 0; rank < group.size(); ++rank) {
    const auto& link = group.link(rank);
    if (link.state == Group::LinkState::kFailed) {
      text += (text.empty() ? "rank " : "; rank ") + std::to_string(rank) +
          ": " + link.failure.message();
    }
  }
  return text;
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
