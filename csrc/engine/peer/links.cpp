#include "engine/peer/links.h"

#include <algorithm>

#include "engine/channel/peer_channel.h"

namespace dlslime {

void Link::send(const OperationPtr& operation, int ownRank) {
  const auto source = static_cast<uint32_t>(ownRank);
  if (operation->kind() == Operation::Kind::kSend) {
    channel->parts()->out.sendTensor(
        operation, {remoteGroup, source, &counters});
    return;
  }
  const auto transfer = std::static_pointer_cast<Transfer>(operation);
  (transfer->write() ? counters.writtenBytes : counters.readBytes) +=
      transfer->totalBytes();
  channel->parts()->initiator.start(transfer, {remoteGroup, source});
}

void Links::use(Link& link, MemoryRegistrar* registrar) {
  link.registrar.store(registrar);
  // The newest registrar serves receives from any source: a receive posted
  // while older receives are being prepared must not be unprepared, too.
  MemoryRegistrar* any = registrar;
  for (auto it = links_.begin(); any == nullptr && it != links_.end(); ++it) {
    any = it->registrar.load();
  }
  registrar_.store(any);
}

void Links::resolve(int rank) {
  auto& link = at(rank);
  if (link.state == LinkState::kUnresolved) {
    link.state = LinkState::kResolving;
    unresolved_.push_back(rank);
  }
}

// Connects for receives, too, because only a connection shows that a peer dies
// before sending. A receive from any source connects to all ranks, to learn
// when all are gone.
void Links::resolveFor(const Operation& operation) {
  if (operation.peer() != Operation::kAnySource) {
    resolve(operation.peer());
    return;
  }
  for (int rank = 0; rank < size(); ++rank) {
    resolve(rank);
  }
}

bool Links::takeUnresolved(std::vector<int>& ranks) {
  ranks.clear();
  ranks.swap(unresolved_);
  return !ranks.empty();
}

bool Links::reachesItself(int rank) {
  if (rank == Operation::kAnySource || rank == ownRank_) {
    return rank == ownRank_;
  }
  const auto& link = at(rank);
  return link.channel != nullptr && link.channel->toItself();
}

const Link* Links::failedIfAll() {
  const Link* failed = nullptr;
  for (int rank = 0; rank < size(); ++rank) {
    if (rank == ownRank_) {
      continue;
    }
    if (at(rank).state != LinkState::kFailed) {
      return nullptr;
    }
    failed = &at(rank);
  }
  return failed;
}

std::vector<PeerChannel*> Links::channels() {
  std::vector<PeerChannel*> all;
  for (auto& link : links_) {
    auto* const channel = link.channel.get();
    if (channel != nullptr &&
        std::find(all.begin(), all.end(), channel) == all.end()) {
      all.push_back(channel);
    }
  }
  return all;
}

} // namespace dlslime
