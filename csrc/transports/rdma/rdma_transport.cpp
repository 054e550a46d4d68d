#include "transports/rdma/rdma_transport.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>

#include "base/fork_guard.h"
#include "transports/rdma/rail/rail_problems.h"

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
    const RailPlan& plan,
    uint8_t nicNumber,
    const RingMemory& memory) {
  const auto& all = devices_->nics;
  const auto place = static_cast<size_t>(
      std::find(all.begin(), all.end(), plan.nic) - all.begin());
  const auto queue = std::make_shared<CompletionQueue>(
      plan.nic->context(), channelOf(place), Rail::mostCompletions(*plan.nic));
  auto rail = std::make_unique<Rail>(
      plan.number, nicNumber, plan.nic, queue, memory, config_);
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
    const std::vector<RailPlan>& plans) {
  auto memory = std::make_unique<RingMemory>();
  std::vector<NicPtr> nics;
  RdmaConnection::Rails rails;
  RailProblems problems;
  for (const auto& plan : plans) {
    const auto found = std::find(nics.begin(), nics.end(), plan.nic);
    const auto place = static_cast<uint8_t>(found - nics.begin());
    const bool made =
        problems.none([&] { rails.push_back(makeRail(plan, place, *memory)); });
    if (made && found == nics.end()) {
      nics.push_back(plan.nic);
    }
  }
  problems.settle(!rails.empty());
  return std::make_unique<RdmaConnection>(
      std::move(memory), std::move(rails), [this](const auto& left) {
        return registrarFor(left);
      });
}

Offer RdmaTransport::offer(const Context& context) {
  auto connection = makeConnection(planRails(usableNics(), config_.queuePairs));
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
