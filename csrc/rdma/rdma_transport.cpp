#include "rdma/rdma_transport.h"

#include "core/log.h"

namespace dlslime::rdma {

RdmaTransport::RdmaTransport(const Verbs& verbs, const RdmaOptions& options)
    : options_(options) {
  verbs.forkInit(); // before the first registration; an error: nothing to do
  auto found = openNics(verbs, options.nics);
  if (found.nics.empty()) {
    std::string reasons;
    for (const auto& reason : found.rejected) {
      reasons += (reasons.empty() ? ": " : "; ") + reason;
    }
    throw Error(
        ErrorCode::kUnavailable,
        found.rejected.empty() ? "no RDMA device is found"
                               : "no RDMA device can be used" + reasons);
  }
  nics_ = std::move(found.nics);
  for (const auto& nic : nics_) {
    channels_.push_back(std::make_shared<CompletionChannel>(nic->context()));
    logInfo("RDMA NIC " + nic->describe());
  }
}

std::unique_ptr<RdmaConnection> RdmaTransport::makeConnection() {
  auto queue = std::make_shared<CompletionQueue>(
      nics_.front()->context(),
      channels_.front(),
      RdmaConnection::mostCompletions());
  auto made = std::make_unique<RdmaConnection>(nics_.front(), queue, options_);
  const std::lock_guard<std::mutex> guard(mutex_);
  std::erase_if(queues_, [](const auto& entry) { return entry.expired(); });
  queues_.push_back(queue);
  return made;
}

Offer RdmaTransport::offer(const Context& context) {
  auto connection = makeConnection();
  Offer offer{connection->address().encode(), {}};
  offered_.put(context.nonce, std::move(connection));
  return offer;
}

std::unique_ptr<Connection>
RdmaTransport::accept(const Context& /*context*/, Offer offer, Offer& answer) {
  const auto peer = EndAddress::decode(offer.blob);
  auto connection = makeConnection();
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

std::vector<int> RdmaTransport::wakeFds() const {
  std::vector<int> fds;
  fds.reserve(channels_.size());
  for (const auto& channel : channels_) {
    fds.push_back(channel->fd());
  }
  return fds;
}

void RdmaTransport::drainWakeFds() {
  for (const auto& channel : channels_) {
    channel->drain();
  }
}

void RdmaTransport::beginSleep() {
  const std::lock_guard<std::mutex> guard(mutex_);
  for (const auto& entry : queues_) {
    if (const auto queue = entry.lock()) {
      try {
        queue->arm();
      } catch (const Error& error) {
        logWarning(error.what()); // polling will find it broken
      }
    }
  }
}

} // namespace dlslime::rdma
