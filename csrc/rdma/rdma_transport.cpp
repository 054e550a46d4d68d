#include "rdma/rdma_transport.h"

#include <sys/epoll.h>

#include <cerrno>

#include "core/fork_guard.h"
#include "core/log.h"

namespace dlslime::rdma {

namespace {
// Opening devices takes milliseconds each, and peers ask often: those that
// could not be used are not tried again at once.
constexpr milliseconds kRetryTime{10000};
} // namespace

RdmaTransport::RdmaTransport(const RdmaConfig& config)
    : config_(config), events_(epoll_create1(EPOLL_CLOEXEC)) {
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

void RdmaTransport::openDevices() {
  if (!nics_.empty()) {
    return;
  }
  if (!unusable_.ok() && Clock::now() < nextTry_) {
    throw Error(unusable_.code(), unusable_.message());
  }
  try {
    const auto& verbs = loadVerbs();
    // Before the first registration. An error: nothing to do about it.
    verbs.forkInit();
    useDevices(openNics(verbs, config_));
  } catch (const Error& error) {
    unusable_ = error.status();
    nextTry_ = deadlineAfter(kRetryTime);
    throw;
  }
}

void RdmaTransport::useDevices(NicList found) {
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
  Channels channels;
  for (const auto& nic : found.nics) {
    auto made = std::make_shared<CompletionChannel>(nic->context());
    epoll_event event{};
    event.events = EPOLLIN;
    if (epoll_ctl(events_.get(), EPOLL_CTL_ADD, made->fd(), &event) != 0) {
      throwErrno("cannot watch a completion channel", errno);
    }
    channels.push_back(std::move(made));
    logInfo("RDMA NIC " + nic->describe());
  }
  nics_ = std::move(found.nics);
  const std::lock_guard<std::mutex> guard(mutex_);
  channels_ = std::move(channels);
}

std::string RdmaTransport::describe() {
  openDevices();
  std::string text = "works";
  for (const auto& nic : nics_) {
    text += "; " + nic->describe();
  }
  return text;
}

std::unique_ptr<RdmaConnection> RdmaTransport::makeConnection() {
  openDevices();
  const auto& nic = nics_.front();
  // This thread alone changes channels_, so it may read them without the lock.
  const auto queue = std::make_shared<CompletionQueue>(
      nic->context(), channels_.front(), RdmaConnection::mostCompletions());
  auto made = std::make_unique<RdmaConnection>(nic, queue, config_);
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

void RdmaTransport::drainWakeFds() {
  const std::lock_guard<std::mutex> guard(mutex_);
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
