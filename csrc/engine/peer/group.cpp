#include "engine/peer/group.h"

#include <algorithm>

#include "engine/peer/peer_channel.h"

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
      links_(static_cast<size_t>(options_.size)) {}

std::string Group::nameOf(int rank) const {
  return (options_.oneLife ? "the peer of \""
                           : "rank " + std::to_string(rank) + " of group \"") +
      options_.name + "\"";
}

void Group::use(int rank) {
  auto& peer = link(rank);
  if (peer.state == LinkState::kUnresolved) {
    peer.state = LinkState::kResolving;
    unresolved_.push_back(rank);
  }
}

bool Group::reachesItself(int rank) {
  if (rank == Operation::kAnySource || rank == this->rank()) {
    return rank == this->rank();
  }
  const auto& peer = link(rank);
  return peer.channel != nullptr && peer.channel->toItself();
}

void Group::awaitUntil(TimePoint when) {
  const auto wanted = when.time_since_epoch().count();
  auto known = awaitedUntil_.load();
  while (known < wanted &&
         !awaitedUntil_.compare_exchange_weak(known, wanted)) {
  }
}

bool Group::takeUnresolved(std::vector<int>& ranks) {
  ranks.clear();
  ranks.swap(unresolved_);
  return !ranks.empty();
}

void Group::sendNow(Link& peer, const OperationPtr& operation) {
  if (operation->kind() != Operation::Kind::kSend) {
    const auto transfer = std::static_pointer_cast<Transfer>(operation);
    auto& counters = peer.counters;
    (transfer->write() ? counters.writtenBytes : counters.readBytes) +=
        transfer->totalBytes();
    peer.channel->initiator().start(
        transfer, {peer.remoteGroup, static_cast<uint32_t>(rank())});
    return;
  }
  peer.channel->out().sendTensor(
      operation,
      {peer.remoteGroup, static_cast<uint32_t>(rank()), &peer.counters});
}

// Connects for receives, too, because only a connection shows that a peer dies
// before sending. A receive from any source connects to all ranks, to learn
// when all are gone.
void Group::useFor(const Operation& operation) {
  if (operation.peer() != Operation::kAnySource) {
    use(operation.peer());
    return;
  }
  for (int rank = 0; rank < size(); ++rank) {
    use(rank);
  }
}

void Group::post(const OperationPtr& operation) {
  operation->groupKey = id_;
  operation->inPair = options_.oneLife;
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
    useFor(*operation);
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
    sendNow(peer, operation);
    return;
  }
  operation->stage = Operation::Stage::kAwaitingPeer;
  peer.waiting.push(operation);
  use(operation->peer());
}

void Group::receive(const OperationPtr& operation) {
  if (closed_) {
    completions_.finish(operation, about(*operation, closeReason_));
    return;
  }
  if (auto arrival = matcher_.takeArrival(*operation)) {
    auto& source = link(arrival->source);
    auto channel = source.channel;
    channel->in().deliver(*this, operation, std::move(*arrival));
    return;
  }
  if (operation->peer() == Operation::kAnySource) {
    matcher_.addReceive(operation);
    useFor(*operation);
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
  useFor(*operation);
}

void Group::makeReady(int source, uint32_t tag) {
  const auto& peer = link(source);
  if (peer.state != LinkState::kReady || !peer.channel->in().mayBePushed()) {
    return;
  }
  if (const auto receive = matcher_.nextReceive(source, tag)) {
    peer.channel->in().advertised().offer(*this, receive);
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
  use(peer, peer.channel->registrar());
  while (auto operation = peer.waiting.pop()) {
    sendNow(peer, operation);
  }
}

void Group::use(Link& link, MemoryRegistrar* registrar) {
  link.registrar.store(registrar);
  // The newest registrar serves receives from any source: a receive posted
  // while older receives are being prepared must not be unprepared, too.
  MemoryRegistrar* any = registrar;
  for (auto it = links_.begin(); any == nullptr && it != links_.end(); ++it) {
    any = it->registrar.load();
  }
  registrar_.store(any);
}

// Includes receives from any source, since a message of the rank may match.
Unprepared Group::unprepared(int rank, MemoryRegistrar* registrar) {
  Unprepared found{registrar, {}};
  if (registrar == nullptr) {
    return found;
  }
  // From now on threads prepare what they post; else there might always be more
  // to prepare.
  use(link(rank), registrar);
  for (auto& operation : pending()) {
    const int peer = operation->peer();
    if ((peer == rank || peer == Operation::kAnySource) && !operation->done() &&
        lacksPreparing(*operation, registrar)) {
      found.operations.push_back(std::move(operation));
    }
  }
  return found;
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
    matcher_.removeAnnounced(&peer.channel->in());
  }
  end(std::move(peer.waiting), why);
  end(matcher_.takeReceivesFrom(rank), why);
  failIfAlone();
}

// Ends receives from any source once all other ranks have failed.
void Group::failIfAlone() {
  const Link* dead = nullptr;
  for (int rank = 0; rank < size(); ++rank) {
    if (rank == this->rank()) {
      continue;
    }
    if (link(rank).state != LinkState::kFailed) {
      return;
    }
    dead = &link(rank);
  }
  if (dead != nullptr) {
    end(matcher_.takeAnySource(), dead->failure);
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
    link(arrival.source).channel->in().discard(arrival);
  }
}

std::vector<OperationPtr> Group::pending() {
  auto all = matcher_.posted();
  for (auto& operation : held_.pending()) {
    all.push_back(std::move(operation));
  }
  std::vector<PeerChannel*> seen;
  for (auto& peer : links_) {
    peer.waiting.forEach([&](const OperationPtr& op) { all.push_back(op); });
    auto* const channel = peer.channel.get();
    if (channel == nullptr ||
        std::find(seen.begin(), seen.end(), channel) != seen.end()) {
      continue;
    }
    seen.push_back(channel);
    if (!channel->alive()) {
      continue;
    }
    for (auto& op : channel->out().pending(id_)) {
      all.push_back(std::move(op));
    }
    for (auto& op : channel->initiator().pending(id_)) {
      all.push_back(std::move(op));
    }
    for (auto& op : channel->in().rendezvous().pending(id_)) {
      all.push_back(std::move(op));
    }
  }
  return all;
}

} // namespace dlslime
