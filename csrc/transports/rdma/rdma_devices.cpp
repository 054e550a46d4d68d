#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <iterator>

#include "base/log.h"
#include "transports/rdma/device/device_nodes.h"
#include "transports/rdma/rdma_transport.h"

// Opens and watches the devices of the route over RDMA.

namespace dlslime::rdma {

namespace {
// Delay before unusable devices are tried again: opening a device takes
// milliseconds, and peers ask often.
constexpr milliseconds kRetryTime{10000};

// Sorts by distance; equally near NICs keep their order.
std::vector<NicPtr> nearestFirst(const std::vector<NicPtr>& nics) {
  std::vector<NicPtr> sorted;
  for (auto far = 0; far <= static_cast<int>(kFarthest); ++far) {
    std::copy_if(
        nics.begin(),
        nics.end(),
        std::back_inserter(sorted),
        [far](const NicPtr& nic) {
          return static_cast<int>(nic->distance()) == far;
        });
  }
  return sorted;
}

// Removes NICs with queues too small for any connection, because they would
// only take the places of useful NICs.
void leaveOutSmall(NicList& found) {
  std::erase_if(found.nics, [&](const NicPtr& nic) {
    try {
      Rail::depthsOn(*nic);
      return false;
    } catch (const Error& error) {
      logWarning(error.what());
      found.rejected.emplace_back(error.what());
      return true;
    }
  });
}

// Returns the text for an event that concerns all ports of the device, or null
// for any other event.
const char* failureOf(ibv_event_type type) {
  switch (type) {
    case IBV_EVENT_DEVICE_FATAL:
      return "the device has failed (IBV_EVENT_DEVICE_FATAL)";
    // Connections own the queues, so the failed queue is unknown here and the
    // whole device counts as failed.
    case IBV_EVENT_CQ_ERR:
      return "a completion queue has failed (IBV_EVENT_CQ_ERR)";
    default:
      return nullptr;
  }
}

} // namespace

void RdmaTransport::openDevices() {
  if (devices_) {
    return;
  }
  if (!unusable_.ok() && Clock::now() < nextTry_) {
    throw Error(unusable_.code(), unusable_.message());
  }
  try {
    const auto& verbs = loadVerbs();
    prepareForForks(verbs);
    auto found = openNics(verbs, config_);
    leaveOutSmall(found);
    watch(found);
    checkNear();
    devices_ = std::move(found);
  } catch (const Error& error) {
    if (error.status().code() != ErrorCode::kExhausted) {
      unusable_ = error.status();
      nextTry_ = deadlineAfter(kRetryTime);
    }
    throw;
  }
}

void RdmaTransport::watch(const NicList& found) {
  Channels channels;
  for (const auto& nic : found.nics) {
    auto made = std::make_shared<CompletionChannel>(nic->context());
    epoll_event event{};
    event.events = EPOLLIN;
    if (epoll_ctl(events_.get(), EPOLL_CTL_ADD, made->fd(), &event) != 0) {
      throwErrno("cannot watch a completion channel", errno);
    }
    channels.push_back(std::move(made));
  }
  const MutexLock lock(mutex_);
  channels_ = std::move(channels);
}

namespace {
std::string noNicText(
    std::vector<std::string> reasons,
    const std::string& sysfs) {
  if (auto missing = missingNodesText(sysfs); !missing.empty()) {
    reasons.insert(reasons.begin(), std::move(missing));
  }
  std::string text;
  for (const auto& reason : reasons) {
    text += (text.empty() ? ": " : "; ") + reason;
  }
  return reasons.empty() ? "no RDMA device is found"
                         : "no RDMA device can be used" + text;
}
} // namespace

// Throws Error if no NIC is usable.
std::vector<NicPtr> RdmaTransport::usableNics() {
  openDevices();
  const bool byGpu = measure();
  std::vector<std::string> reasons;
  auto nics = devices_->usable(reasons);
  nics = nearestFirst(nics);
  if (byGpu) {
    // GPU memory is several times slower through a CPU or between CPUs, so only
    // the nearest NICs stay.
    std::erase_if(
        nics,
        [nearest = nics.empty() ? kFarthest : nics.front()->distance()](
            const NicPtr& nic) { return nic->distance() > nearest; });
  }
  if (nics.empty()) {
    throw Error(
        ErrorCode::kUnavailable, noNicText(std::move(reasons), config_.sysfs));
  }
  return nics;
}

std::string RdmaTransport::describe() {
  std::string text = "works";
  for (const auto& nic : usableNics()) {
    text += "; " + nic->describe();
  }
  return text;
}

void RdmaTransport::checkNear() const {
  const auto& near = config_.near;
  if (!near.empty() && Topology(config_.sysfs).ofPciDevice(near).path.empty()) {
    logWarning(
        "DLSLIME_NEAR=" + near +
        " is not the address of a PCI device here (as in /sys/bus/pci/devices, "
        "\"0000:18:00.0\"): the RDMA devices nearest to the process's "
        "processors come first");
  }
}

// Returns the place of the GPU whose memory is sent: set by DLSLIME_NEAR, or
// the only GPU in use. Empty if unknown.
Place RdmaTransport::placeOfGpu(const Topology& topology) const {
  if (!config_.near.empty()) {
    return topology.ofPciDevice(config_.near);
  }
  const auto gpus = gpusInUse_();
  return gpus.size() == 1 ? topology.ofPciDevice(gpus[0]) : Place();
}

// Measures each NIC's distance from the GPU. Returns false if no GPU is known;
// the distance is then from the processors. Repeated for each connection,
// because programs communicate before they use GPUs.
bool RdmaTransport::measure() const {
  const Topology topology(config_.sysfs);
  const auto gpu = placeOfGpu(topology);
  const auto nodes = topology.nodesOf(allowedCpus());
  for (const auto& nic : devices_->nics) {
    const auto place = topology.ofRdmaDevice(nic->context()->name());
    nic->setDistance(
        gpu.path.empty() ? Topology::between(place, nodes)
                         : Topology::between(place, gpu));
  }
  return !gpu.path.empty();
}

std::vector<int> RdmaTransport::deviceFds() const {
  std::vector<int> fds;
  for (const auto& nic : devices_ ? devices_->nics : std::vector<NicPtr>()) {
    if (!nic->context()->gone()) {
      fds.push_back(nic->context()->eventFd());
    }
  }
  return fds;
}

DeviceWatch::News RdmaTransport::onDevices() {
  News news;
  const auto count = devices_ ? devices_->nics.size() : 0;
  for (size_t place = 0; place < count; ++place) {
    const auto& nic = devices_->nics[place];
    while (const auto event = nic->context()->nextEvent()) {
      onEvent(*nic->context(), *event, news);
    }
    // A removed device leaves its completion channel readable for ever.
    if (nic->context()->gone() &&
        epoll_ctl(
            events_.get(), EPOLL_CTL_DEL, channelOf(place)->fd(), nullptr) ==
            0) {
      logWarning(nic->name() + ": the device is gone");
      nic->lose("the device is gone");
      news.down = true;
    }
  }
  return news;
}

void RdmaTransport::onEvent(
    const rdma::Context& context,
    const rdma::Context::Event& event,
    News& news) {
  const auto lose = [&](Nic& nic, const char* why) {
    logInfo(nic.name() + ": " + why);
    nic.lose(why);
    news.down = true;
  };
  const auto refresh = [&](Nic& nic) {
    const auto before = nic.losses();
    const bool works = nic.refresh().ok();
    news.down |= nic.losses() != before;
    return works;
  };
  for (const auto& nic : devices_->nics) {
    if (nic->context().get() != &context) {
      continue;
    }
    const bool its = nic->port() == event.port;
    if (const char* const failure = failureOf(event.type)) {
      lose(*nic, failure);
    } else if (its && event.type == IBV_EVENT_PORT_ERR) {
      // Without another working NIC the port is not given up: it may be up
      // again before the retries end.
      if (othersWork(*nic)) {
        lose(*nic, "its port went down (IBV_EVENT_PORT_ERR)");
      }
    } else if (its && event.type == IBV_EVENT_PORT_ACTIVE) {
      logInfo(nic->name() + ": its port is up (IBV_EVENT_PORT_ACTIVE)");
      refresh(*nic); // the address may have changed
      news.up = true;
    } else if (
        its &&
        (event.type == IBV_EVENT_GID_CHANGE ||
         event.type == IBV_EVENT_LID_CHANGE)) {
      const bool works = refresh(*nic);
      if (!works && othersWork(*nic)) {
        lose(*nic, "it has no usable address any more");
      }
      news.up |= works;
    }
  }
}

bool RdmaTransport::othersWork(const Nic& nic) const {
  const auto& all = devices_->nics;
  return std::any_of(all.begin(), all.end(), [&](const NicPtr& other) {
    return other.get() != &nic && other->refresh().ok();
  });
}

} // namespace dlslime::rdma
