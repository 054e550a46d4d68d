#include "transports/rdma/rdma_transport.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <set>

#include "base/fork_guard.h"
#include "transports/rdma/rail_problems.h"

namespace dlslime::rdma {

RdmaTransport::RdmaTransport(const RdmaConfig& config, GpusInUse gpusInUse)
    : config_(config),
      gpusInUse_(std::move(gpusInUse)),
      events_(epoll_create1(EPOLL_CLOEXEC)) {
  if (!config_.enabled) {
    throw Error(
        ErrorCode::kUnavailable,
        "switched off by DLSLIME_RDMA=off or NCCL_IB_DISABLE=1");
  }
  if (!haveDevices()) {
    throw Error(
        ErrorCode::kUnavailable,
        "this machine has no RDMA device (nothing in /sys/class/infiniband)");
  }
  if (!events_) {
    throwErrno("cannot create an epoll set", errno);
  }
  registerForkFd(events_.get());
}

RdmaTransport::~RdmaTransport() {
  unregisterForkFd(events_.get());
}

std::unique_ptr<Rail> RdmaTransport::makeRail(
    const Berth& berth,
    uint8_t nicNumber,
    const RingMemory& memory) {
  const auto& all = devices_->nics;
  const auto place = static_cast<size_t>(
      std::find(all.begin(), all.end(), berth.nic) - all.begin());
  const auto queue = std::make_shared<CompletionQueue>(
      berth.nic->context(),
      channelOf(place),
      Rail::mostCompletions(*berth.nic));
  auto rail = std::make_unique<Rail>(
      berth.number, nicNumber, berth.nic, queue, memory, config_);
  const MutexLock lock(mutex_);
  std::erase_if(queues_, [](const auto& entry) { return entry.expired(); });
  queues_.push_back(queue);
  return rail;
}

// Returns the registrar for exactly these NICs. It is never destroyed, because
// groups remember the pointer.
MemoryRegistrar* RdmaTransport::registrarFor(const std::vector<NicPtr>& nics) {
  for (const auto& known : registrars_) {
    if (known->nics() == nics) {
      return known.get();
    }
  }
  registrars_.push_back(std::make_unique<RailRegistrar>(nics));
  return registrars_.back().get();
}

std::unique_ptr<RdmaConnection> RdmaTransport::makeConnection(
    const std::vector<Berth>& berths) {
  auto memory = std::make_unique<RingMemory>();
  std::vector<NicPtr> nics;
  RdmaConnection::Rails rails;
  RailProblems problems;
  for (const auto& berth : berths) {
    const auto found = std::find(nics.begin(), nics.end(), berth.nic);
    const auto place = static_cast<uint8_t>(found - nics.begin());
    const bool made = problems.none(
        [&] { rails.push_back(makeRail(berth, place, *memory)); });
    if (made && found == nics.end()) {
      nics.push_back(berth.nic);
    }
  }
  problems.settle(!rails.empty());
  return std::make_unique<RdmaConnection>(
      std::move(memory), std::move(rails), [this](const auto& left) {
        return registrarFor(left);
      });
}

Offer RdmaTransport::offer(const Context& context) {
  auto nics = usableNics();
  nics.resize(std::min(nics.size(), RemoteBuffer::kMostKeys));
  std::vector<Berth> berths;
  for (int i = 0; i < config_.queuePairs; ++i) {
    for (const auto& nic : nics) {
      if (berths.size() < EndAddress::kMostRails) {
        berths.push_back({static_cast<uint8_t>(berths.size()), nic});
      }
    }
  }
  auto connection = makeConnection(berths);
  Offer offer{connection->address().encode(), {}};
  offered_.put(context.nonce, std::move(connection));
  return offer;
}

std::unique_ptr<Connection>
RdmaTransport::accept(const Context& /*context*/, Offer offer, Offer& answer) {
  const auto peer = EndAddress::decode(offer.blob);
  auto connection = makeConnection(matchRails(peer, usableNics()));
  connection->connect(peer, false);
  answer = {connection->address().encode(), {}};
  return connection;
}

// Gives each of the peer's NICs a NIC of ours, nearest pairs first: NICs in the
// same network, as far as GIDs tell. The rest of the longer list is left out,
// because it would only share the NICs of the shorter list.
std::vector<RdmaTransport::Berth> RdmaTransport::matchRails(
    const EndAddress& peer,
    const std::vector<NicPtr>& nics) {
  struct Match {
    int near;
    size_t order; // breaks ties: the first match wins
    uint8_t peerNic;
    NicPtr nic;
  };
  std::vector<Match> matches;
  for (const auto& rail : peer.rails) {
    for (const auto& nic : nics) {
      if (nic->ethernet() == rail.pair.ethernet) {
        const auto& gid = nic->gid().value;
        matches.push_back(
            {commonNetworkBits(gid, rail.pair.gid),
             matches.size(),
             rail.nicNumber,
             nic});
      }
    }
  }
  std::sort(
      matches.begin(), matches.end(), [](const auto& one, const auto& other) {
        return std::pair(-one.near, one.order) <
            std::pair(-other.near, other.order);
      });
  std::map<uint8_t, NicPtr> chosen;
  std::set<NicPtr> taken;
  for (const auto& match : matches) {
    if (!chosen.contains(match.peerNic) && !taken.contains(match.nic)) {
      chosen[match.peerNic] = match.nic;
      taken.insert(match.nic);
    }
  }
  std::vector<Berth> berths;
  for (const auto& rail : peer.rails) {
    if (chosen.contains(rail.nicNumber)) {
      berths.push_back({rail.number, chosen[rail.nicNumber]});
    }
  }
  if (berths.empty()) {
    throw Error(
        ErrorCode::kUnavailable,
        "the peer's NICs are " +
            std::string(
                peer.rails[0].pair.ethernet ? "Ethernet" : "InfiniBand") +
            ", and no NIC of this process is");
  }
  return berths;
}

std::unique_ptr<Connection> RdmaTransport::finish(
    const Context& context,
    Offer answer) {
  auto connection = offered_.take(context.nonce);
  connection->connect(EndAddress::decode(answer.blob), true);
  return connection;
}

void RdmaTransport::withdraw(const Context& context) {
  offered_.drop(context.nonce);
}

void RdmaTransport::drainWakeFds() {
  const MutexLock lock(mutex_);
  for (const auto& channel : channels_) {
    channel->drain();
  }
}

void RdmaTransport::beginSleep() {
  const MutexLock lock(mutex_);
  for (const auto& entry : queues_) {
    if (const auto queue = entry.lock()) {
      queue->arm();
    }
  }
}

} // namespace dlslime::rdma
