#include "engine/peer/group.h"

#include "engine/channel/peer_channel.h"

namespace dlslime {

namespace {

// Several, since a process of an earlier incarnation of the job may break a
// connection while ending.
constexpr int kMostBrokenJoins = 3;

Status about(const Operation& operation, const Status& why) {
  return inWords([&] {
    return Status(
        why.code(), operation.describe() + " failed: " + why.message());
  });
}

} // namespace

Group::Group(
    uint32_t id,
    uint64_t epoch,
    GroupOptions options,
    Completions& done,
    std::function<void()> wake)
    : id_(id),
      epoch_(epoch),
      options_(std::move(options)),
      completions_(done),
      addresses_(
          options_.rendezvous,
          options_.rank,
          options_.size,
          std::move(wake)),
      held_(done),
      matcher_(options_.size),
      links_(options_.rank, options_.size) {}

std::string Group::nameOf(int rank) const {
  return (options_.oneLife ? "the peer of \""
                           : "rank " + std::to_string(rank) + " of group \"") +
      options_.name + "\"";
}

void Group::awaitUntil(TimePoint when) {
  const auto wanted = when.time_since_epoch().count();
  auto known = awaitedUntil_.load();
  while (known < wanted &&
         !awaitedUntil_.compare_exchange_weak(known, wanted)) {
  }
}

void Group::post(const OperationPtr& operation) {
  operation->groupKey = id_;
  operation->inPair = options_.oneLife;
  completions_.begin(*operation);
  if (operation->oneSided()) {
    static_cast<Transfer&>(*operation).hold();
  }
  if (!held_.mustHold(*operation)) {
    postNow(operation);
    return;
  }
  held_.hold(operation);
  if (closed_) { // held first: the stream may still touch the memory
    held_.cancel(operation, about(*operation, closeReason_));
  } else {
    links_.resolveFor(*operation);
  }
}

void Group::postNow(const OperationPtr& operation) {
  operation->kind() == Operation::Kind::kReceive ? receive(operation)
                                                 : send(operation);
}

bool Group::postHeld() {
  auto reached = held_.takeReached();
  const bool any = !reached.empty();
  while (const auto operation = reached.pop()) {
    try {
      postNow(operation);
    } catch (const std::bad_alloc&) {
      completions_.finish(operation, outOfMemory());
    }
  }
  return any;
}

void Group::send(const OperationPtr& operation) {
  auto& peer = link(operation->peer());
  if (closed_ || peer.state == LinkState::kFailed) {
    completions_.finish(
        operation, about(*operation, closed_ ? closeReason_ : peer.failure));
    return;
  }
  if (peer.state == LinkState::kReady) {
    peer.send(operation, options_.rank);
    return;
  }
  operation->stage = Operation::Stage::kAwaitingPeer;
  peer.waiting.push(operation);
  links_.resolve(operation->peer());
}

void Group::receive(const OperationPtr& operation) {
  if (closed_) {
    completions_.finish(operation, about(*operation, closeReason_));
    return;
  }
  if (auto arrival = matcher_.takeArrival(*operation)) {
    auto& source = link(arrival->source);
    auto channel = source.channel;
    channel->parts()->in.deliver(*this, operation, std::move(*arrival));
    return;
  }
  if (operation->peer() == Operation::kAnySource) {
    matcher_.addReceive(operation);
    links_.resolveFor(*operation);
    failIfAlone();
    return;
  }
  auto& peer = link(operation->peer());
  if (peer.state == LinkState::kFailed) {
    completions_.finish(operation, about(*operation, peer.failure));
    return;
  }
  matcher_.addReceive(operation);
  makeReady(operation->peer(), operation->tag());
  links_.resolveFor(*operation);
}

void Group::makeReady(int source, uint32_t tag) {
  const auto& peer = link(source);
  if (peer.state != LinkState::kReady ||
      !peer.channel->parts()->in.mayBePushed()) {
    return;
  }
  if (const auto receive = matcher_.nextReceive(source, tag)) {
    peer.channel->parts()->in.advertised().offer(*this, receive);
  }
}

void Group::linkReady(
    int rank,
    std::shared_ptr<PeerChannel> channel,
    uint32_t remoteGroup) {
  auto& peer = link(rank);
  if (peer.state == LinkState::kReady || peer.state == LinkState::kFailed ||
      closed_) {
    return;
  }
  peer.state = LinkState::kReady;
  peer.channel = std::move(channel);
  peer.remoteGroup = remoteGroup;
  links_.use(peer, peer.channel->connection().registrar());
  while (auto operation = peer.waiting.pop()) {
    peer.send(operation, options_.rank);
  }
}

void Group::joinBroke(int rank, const Status& why) {
  auto& peer = link(rank);
  peer.state = LinkState::kResolving;
  peer.channel = nullptr;
  if (++peer.brokenJoins == kMostBrokenJoins) {
    failLink(
        rank,
        Status(
            why.code(),
            nameOf(rank) +
                " can't be reached: " + std::to_string(kMostBrokenJoins) +
                " connections to it broke before it answered, the last one "
                "because: " +
                why.message()));
  }
}

void Group::end(OperationQueue queue, const Status& why) {
  while (auto operation = queue.pop()) {
    try {
      finish(operation, about(*operation, why));
    } catch (const std::bad_alloc&) {
      // The operation has ended, and the memory is kept until the peer is gone.
      logWithoutMemory("taking a receive back");
    }
  }
}

// Ends an operation that has met no message. The memory may be offered to the
// peer.
void Group::finish(OperationPtr operation, const Status& why) {
  if (auto* const holder = operation->holder) {
    holder->cancel(operation, why);
  } else {
    completions_.finish(std::move(operation), why);
  }
}

void Group::failLink(int rank, const Status& why) {
  auto& peer = link(rank);
  if (peer.state == LinkState::kFailed) {
    return;
  }
  peer.state = LinkState::kFailed;
  peer.failure = why;
  if (peer.channel) {
    matcher_.removeAnnounced(&peer.channel->parts()->in);
  }
  end(std::move(peer.waiting), why);
  end(matcher_.takeReceivesFrom(rank), why);
  failIfAlone();
}

// Ends receives from any source once all other ranks have failed.
void Group::failIfAlone() {
  if (const auto* const failed = links_.failedIfAll()) {
    end(matcher_.takeAnySource(), failed->failure);
  }
}

bool Group::cancelHere(const OperationPtr& operation, const Status& why) {
  if (operation->stage == Operation::Stage::kHeld) {
    held_.cancel(operation, why);
    return true;
  }
  const bool removed = operation->stage == Operation::Stage::kAwaitingPeer
      ? link(operation->peer()).waiting.remove(operation.get())
      : operation->stage == Operation::Stage::kPosted &&
          matcher_.removeReceive(*operation);
  if (removed) {
    finish(operation, why);
  }
  return removed;
}

void Group::close(const Status& why) {
  if (closed_) {
    return;
  }
  closed_ = true;
  closeReason_ = why;
  addresses_.close();
  held_.cancelAll(why);
  for (int rank = 0; rank < size(); ++rank) {
    end(std::move(link(rank).waiting), why);
    end(matcher_.takeReceivesFrom(rank), why);
  }
  end(matcher_.takeAnySource(), why);
  for (const auto& arrival : matcher_.takeArrivals()) {
    link(arrival.source).channel->parts()->in.discard(arrival);
  }
}

std::vector<OperationPtr> Group::pending() {
  auto all = matcher_.posted();
  for (auto& operation : held_.pending()) {
    all.push_back(std::move(operation));
  }
  for (int rank = 0; rank < size(); ++rank) {
    link(rank).waiting.forEach(
        [&](const OperationPtr& operation) { all.push_back(operation); });
  }
  for (auto* const channel : links_.channels()) {
    if (!channel->alive()) {
      continue;
    }
    for (auto& op : channel->parts()->out.pending(id_)) {
      all.push_back(std::move(op));
    }
    for (auto& op : channel->parts()->initiator.pending(id_)) {
      all.push_back(std::move(op));
    }
    for (auto& op : channel->parts()->in.rendezvous().pending(id_)) {
      all.push_back(std::move(op));
    }
  }
  return all;
}

// Includes receives from any source, since a message of the rank may match.
Unprepared findUnprepared(Group& group, int rank, MemoryRegistrar* registrar) {
  Unprepared found{registrar, {}};
  if (registrar == nullptr) {
    return found;
  }
  // From now on threads prepare what they post; else there might always be more
  // to prepare.
  group.links().use(group.link(rank), registrar);
  for (auto& operation : group.pending()) {
    const int peer = operation->peer();
    if ((peer == rank || peer == Operation::kAnySource) && !operation->done() &&
        lacksPreparing(*operation, registrar)) {
      found.operations.push_back(std::move(operation));
    }
  }
  return found;
}

} // namespace dlslime
