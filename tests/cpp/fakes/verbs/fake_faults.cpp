// Faults of a FakeFabric, and its counters.
#include <sys/eventfd.h>

#include <algorithm>

#include "fakes/verbs/fake_verbs_objects.h"

namespace dlslime::testing {

void FakeFabric::dropLarger(const std::string& device, size_t bytes) {
  const std::lock_guard<std::mutex> guard(mutex_);
  dropping_[device] = bytes;
}

void FakeFabric::remove(const std::string& device) {
  const std::lock_guard<std::mutex> guard(mutex_);
  cut_[device] = true;
  removed_.insert(device);
  tellLocked(device, IBV_EVENT_DEVICE_FATAL, 0);
}

FakePort& FakeFabric::portOf(const std::string& device, size_t port) {
  const auto found =
      std::find_if(devices_.begin(), devices_.end(), [&](const auto& known) {
        return known.name == device;
      });
  return found->ports.at(port);
}

void FakeFabric::setPort(
    const std::string& device,
    size_t port,
    ibv_port_state state) {
  const std::lock_guard<std::mutex> guard(mutex_);
  portOf(device, port).state = state;
  tellLocked(
      device,
      state == IBV_PORT_ACTIVE ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR,
      static_cast<uint8_t>(port + 1));
}

void FakeFabric::tell(
    const std::string& device,
    ibv_event_type type,
    uint8_t port) {
  const std::lock_guard<std::mutex> guard(mutex_);
  tellLocked(device, type, port);
}

void FakeFabric::tellLocked(
    const std::string& device,
    ibv_event_type type,
    uint8_t port) {
  for (auto* const context : contexts_) {
    if (context->device->name == device) {
      ibv_async_event event{};
      event.event_type = type;
      event.element.port_num = port;
      context->events.push_back(event);
      eventfd_write(context->base.async_fd, 1);
    }
  }
}

void FakeFabric::setGid(
    const std::string& device,
    size_t port,
    const ibv_gid& gid) {
  const std::lock_guard<std::mutex> guard(mutex_);
  auto& known = portOf(device, port);
  known.gids = {{known.ethernet ? IBV_GID_TYPE_ROCE_V2 : IBV_GID_TYPE_IB, gid}};
  tellLocked(device, IBV_EVENT_GID_CHANGE, static_cast<uint8_t>(port + 1));
}

void FakeFabric::setLid(const std::string& device, size_t port, uint16_t lid) {
  const std::lock_guard<std::mutex> guard(mutex_);
  portOf(device, port).lid = lid;
  tellLocked(device, IBV_EVENT_LID_CHANGE, static_cast<uint8_t>(port + 1));
}

void FakeFabric::failOpening(const std::string& device, int error) {
  const std::lock_guard<std::mutex> guard(mutex_);
  for (auto& known : devices_) {
    known.openError = known.name == device ? error : known.openError;
  }
}

void FakeFabric::cut(const std::string& device, bool down) {
  const std::lock_guard<std::mutex> guard(mutex_);
  cut_[device] = down;
  releaseLocked(device);
}

void FakeFabric::failPosts(int count, int error, int taken) {
  const std::lock_guard<std::mutex> guard(mutex_);
  failingPosts_ = count;
  postError_ = error;
  postTaken_ = taken;
}

void FakeFabric::failRegistrations(int error, int count) {
  const std::lock_guard<std::mutex> guard(mutex_);
  registrationError_ = error;
  failingRegistrations_ = error == 0 ? 0 : count;
}

void FakeFabric::onRegistration(std::function<void(size_t)> told) {
  const std::lock_guard<std::mutex> guard(mutex_);
  registrationTold_ = std::move(told);
}

void FakeFabric::onDeregistration(std::function<void(size_t)> told) {
  const std::lock_guard<std::mutex> guard(mutex_);
  deregistrationTold_ = std::move(told);
}

void FakeFabric::refusePairs(
    const std::string& device,
    ibv_qp_state state,
    int error) {
  const std::lock_guard<std::mutex> guard(mutex_);
  refusedPairs_[{device, state}] = error;
}

void FakeFabric::delay(int polls) {
  const std::lock_guard<std::mutex> guard(mutex_);
  delay_ = polls;
}

void FakeFabric::reorder(uint64_t seed, int polls) {
  const std::lock_guard<std::mutex> guard(mutex_);
  random_.seed(seed);
  mostDelay_ = polls;
}

int FakeFabric::someDelay() {
  return mostDelay_ == 0
      ? delay_
      : static_cast<int>(random_() % static_cast<uint64_t>(mostDelay_ + 1));
}

void FakeFabric::landLate(const std::string& device) {
  const std::lock_guard<std::mutex> guard(mutex_);
  landingLate_.insert(device);
}

void FakeFabric::slow(const std::string& device, int polls) {
  const std::lock_guard<std::mutex> guard(mutex_);
  slow_[device] = polls;
}

void FakeFabric::hold(const std::string& device, size_t bytes, int first) {
  const std::lock_guard<std::mutex> guard(mutex_);
  holding_[device] = {bytes, first};
}

void FakeFabric::release(const std::string& device) {
  const std::lock_guard<std::mutex> guard(mutex_);
  releaseLocked(device);
}

void FakeFabric::releaseLocked(const std::string& device) {
  if (holding_.erase(device) == 0) {
    return;
  }
  for (auto& [number, qp] : qps_) {
    if (qp->base.context->device->name == device) {
      for (auto& request : qp->sends) {
        request.delay = 0;
      }
      progress(*qp);
    }
  }
}

uint64_t FakeFabric::requests(const std::string& device, ibv_wr_opcode opcode) {
  const std::lock_guard<std::mutex> guard(mutex_);
  return posted_[{device, opcode}].requests;
}

uint64_t FakeFabric::bytes(const std::string& device, ibv_wr_opcode opcode) {
  const std::lock_guard<std::mutex> guard(mutex_);
  return posted_[{device, opcode}].bytes;
}

std::map<std::string, int> FakeFabric::live() {
  const std::lock_guard<std::mutex> guard(mutex_);
  auto found = live_;
  std::erase_if(found, [](const auto& entry) { return entry.second == 0; });
  return found;
}

bool FakeFabric::overflowed() {
  const std::lock_guard<std::mutex> guard(mutex_);
  return overflowed_;
}

uint64_t FakeFabric::doorbells() {
  const std::lock_guard<std::mutex> guard(mutex_);
  return doorbells_;
}

std::vector<ibv_qp_attr> FakeFabric::steps(
    const std::string& device,
    ibv_qp_state state) {
  const std::lock_guard<std::mutex> guard(mutex_);
  return steps_[{device, state}];
}

void FakeFabric::forgetSteps() {
  const std::lock_guard<std::mutex> guard(mutex_);
  steps_.clear();
}

uint64_t FakeFabric::requests(ibv_wr_opcode opcode) {
  const std::lock_guard<std::mutex> guard(mutex_);
  return requests_[opcode];
}

void FakeFabric::unready(const std::string& device, int times) {
  const std::lock_guard<std::mutex> guard(mutex_);
  unready_[device] = times;
}

void FakeFabric::refuse(const std::string& call, int error) {
  const std::lock_guard<std::mutex> guard(mutex_);
  refusedCalls_[call] = error;
}

uint64_t FakeFabric::withoutReceives() {
  const std::lock_guard<std::mutex> guard(mutex_);
  return withoutReceives_;
}

uint64_t FakeFabric::inlined() {
  const std::lock_guard<std::mutex> guard(mutex_);
  return inlined_;
}

uint64_t FakeFabric::signalled() {
  const std::lock_guard<std::mutex> guard(mutex_);
  return signalled_;
}

} // namespace dlslime::testing
