#include "engine/core/group_life.h"

#include <unistd.h>

#include <algorithm>
#include <thread>

#include "base/fork_guard.h"
#include "base/random.h"
#include "engine/bootstrap/bounded_store.h"
#include "engine/core/forked_child.h"

namespace dlslime {

namespace {
// Pause between looks at a connection coming up, or at messages still to be
// sent.
constexpr microseconds kLookPause{200};

// Returns the nonce of this process, shared by all engines in the life of the
// process.
const std::string& processNonce() {
  static const auto* nonce = new std::string(dlslime::hex(randomBytes(8)));
  return *nonce;
}
} // namespace

std::shared_ptr<Group> GroupLife::join(GroupOptions options) {
  refuseInForkedChild();
  const BoundedStore store(options.rendezvous, deadlineAfter(options.timeout));
  const int rank = options.rank;
  // Counts the incarnations of the group in this process and store, across
  // engines. Each process counts under a key of its own, so that no stale count
  // is continued.
  const auto epoch = store.increment(
      "epoch/" + std::to_string(getpid()) + "/" + processNonce() + "/" +
      std::to_string(rank));
  AddressRecord record;
  record.identity = state_.self;
  record.token = state_.token;
  record.socketName = wireUp_.socketName();
  record.addresses = wireUp_.addresses();
  record.epoch = epoch;
  record.joined = options.joined = nowSinceBoot();
  std::shared_ptr<Group> group;
  {
    const EngineLock lock(state_);
    group = state_.groupRegistry.add(epoch, std::move(options));
  }
  record.group = group->id();
  try {
    store.set(addressKey(rank), encode(record));
  } catch (const Error&) {
    const EngineLock lock(state_);
    state_.groupRegistry.remove(*group);
    throw;
  }
  group->addresses().readAhead();
  return group;
}

PeerReport GroupLife::explain(
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
  std::string problem;
  while (Clock::now() < deadline) {
    driver_.step(nullptr);
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
      problem = link.problem;
    }
    std::this_thread::sleep_for(kLookPause);
  }
  throw Error(
      ErrorCode::kTimeout,
      group.nameOf(rank) + " has not been reached in time" +
          (problem.empty() ? "" : ": " + problem));
}

void GroupLife::pair(
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

void GroupLife::cancel(
    Group& group,
    const OperationPtr& operation,
    const Status& why) {
  const EngineLock lock(state_);
  cancelLocked(group, operation, why);
}

void GroupLife::cancelLocked(
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

void GroupLife::abandon(
    Group& group,
    const OperationPtr& operation,
    const Status& why) {
  const EngineLock lock(state_);
  cancelLocked(group, operation, why);
  state_.completions.finishEarly(operation, why);
}

void GroupLife::abort(Group& group, const Status& why) {
  const EngineLock lock(state_);
  group.close(why);
  for (const auto& operation : group.pending()) {
    cancelLocked(group, operation, why);
    state_.completions.finishEarly(operation, why);
  }
}

void GroupLife::leave(Group& group) {
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

bool GroupLife::isClosed(Group& group) {
  const EngineLock lock(state_);
  return group.closed();
}

void GroupLife::keepGuest(const std::shared_ptr<Group>& guest) {
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

void GroupLife::linger(Group& group, TimePoint deadline) {
  std::vector<OperationPtr> pending;
  {
    const EngineLock lock(state_);
    pending = group.pending();
  }
  for (const auto& operation : pending) {
    if (operation->kind() != Operation::Kind::kReceive) {
      driver_.progress().wait(*operation, deadline);
    }
  }
  if (!hasFailedPeer(group)) {
    group.addresses().awaitReaders(deadline);
  }
}

bool GroupLife::hasFailedPeer(Group& group) {
  const EngineLock lock(state_);
  for (int rank = 0; rank < group.size(); ++rank) {
    if (group.link(rank).state == Group::LinkState::kFailed) {
      return true;
    }
  }
  return false;
}

void GroupLife::lingerAll() {
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
    driver_.step(nullptr);
    std::this_thread::sleep_for(kLookPause);
  }
  if (state_.directory) { // a file would outlive the process
    state_.directory->remove(wireUp_.socketName());
  }
}

bool GroupLife::allSent() {
  const EngineLock lock(state_);
  const auto open = state_.channels.those(
      [](const PeerChannel& channel)
          REQUIRES(kEngineLock) { return channel.open(); });
  return std::all_of(
      open.begin(), open.end(), [](const auto& member) REQUIRES(kEngineLock) {
        return member.channel->allSent();
      });
}

} // namespace dlslime
