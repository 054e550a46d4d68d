#include "engine/engine.h"

#include <thread>

#include "base/fork_guard.h"
#include "engine/bootstrap/net_address.h"
#include "engine/core/connection_memory.h"
#include "engine/core/engine_core.h"
#include "engine/peer/group_report.h"
#include "engine/progress/engine_thread.h"
#include "transports/transports.h"

namespace dlslime {

namespace {
// Deletes the engine with the last handle. In a forked child the engine's
// threads do not exist and the lock may be held for ever, so the engine is left
// alone.
void end(Engine* engine) {
  if (inForkedChild()) {
    return;
  }
  if (onEngineThread) {
    std::thread([engine] { delete engine; }).detach();
  } else {
    delete engine;
  }
}

// The engine of the process, if any.
struct Shared {
  std::mutex mutex;
  std::weak_ptr<Engine> engine; // guarded by mutex
};
Shared& theShared() {
  static auto* const shared = new Shared;
  return *shared;
}

} // namespace

std::shared_ptr<Engine> Engine::acquire() {
  refuseInForkedChild();
  auto& shared = theShared();
  const std::lock_guard<std::mutex> guard(shared.mutex);
  auto engine = shared.engine.lock();
  if (!engine) {
    engine =
        std::shared_ptr<Engine>(new Engine(Config::fromEnvironment()), &end);
    shared.engine = engine;
  }
  return engine;
}

std::shared_ptr<Engine> Engine::existing() {
  auto& shared = theShared();
  const std::lock_guard<std::mutex> guard(shared.mutex);
  return shared.engine.lock();
}

Engine::Engine(const Config& config)
    : core_(std::make_unique<EngineCore>(config)) {}

Engine::~Engine() = default;

std::shared_ptr<Group> Engine::join(GroupOptions options) {
  return core_->groups.join(std::move(options));
}

void Engine::leave(Group& group) {
  core_->groups.leave(group);
}

void Engine::keepGuest(const std::shared_ptr<Group>& guest) {
  core_->groups.keepGuest(guest);
}

void Engine::pair(
    Group& group,
    int rank,
    const AddressRecord& record,
    Group& spare) {
  core_->groups.pair(group, rank, record, spare);
}

void Engine::lingerAll() {
  core_->groups.lingerAll();
}

FlightLog Engine::flightLog() {
  return core_->posting.flightLog();
}

std::vector<OperationReport> Engine::operationReports() {
  return core_->posting.operationReports();
}

uint64_t Engine::keyOf(const Group& group) {
  return group.id();
}

void Engine::abort(Group& group, const Status& why) {
  core_->groups.abort(group, why);
}

void Engine::cancel(
    Group& group,
    const OperationPtr& operation,
    const Status& why) {
  core_->groups.cancel(group, operation, why);
}

void Engine::abandon(
    Group& group,
    const OperationPtr& operation,
    const Status& why) {
  core_->groups.abandon(group, operation, why);
}

void Engine::send(Group& group, const OperationPtr& operation) {
  core_->posting.send(group, operation);
}

void Engine::receive(Group& group, const OperationPtr& operation) {
  core_->posting.receive(group, operation);
}

void Engine::transfer(Group& group, const TransferPtr& transfer) {
  core_->posting.transfer(group, transfer);
}

RegionPtr Engine::registerMemory(
    MemoryView view,
    std::string name,
    std::shared_ptr<void> keeper) {
  return core_->memory.registerMemory(view, std::move(name), std::move(keeper));
}

void Engine::deregister(const RegionPtr& region, TimePoint deadline) {
  core_->memory.deregister(region, deadline);
}

bool Engine::wait(const Operation& operation, Deadline deadline) {
  return core_->driver.progress().wait(operation, deadline);
}

bool Engine::poke(const Operation* asked) {
  return core_->driver.progress().look(asked);
}

void Engine::attend() {
  core_->driver.progress().attend();
}

void Engine::noteFetched() NO_THREAD_SAFETY_ANALYSIS {
  core_->state.completions.noteFetched(); // writes an atomic alone
}

MemoryUse Engine::memoryUse(Group& group) {
  return dlslime::memoryUse(core_->state, group);
}

void Engine::trim(Group& group) {
  dlslime::trim(core_->state, group);
}

uint32_t Engine::peerPid(Group& group, int rank) {
  return dlslime::peerPid(core_->state, group, rank);
}

std::vector<PeerReport> Engine::report(Group& group) {
  const EngineLock lock(core_->state);
  return reportPeers(group);
}

PeerReport Engine::explain(
    Group& group,
    int rank,
    TimePoint deadline,
    const std::function<void()>& meanwhile) {
  return core_->groups.explain(group, rank, deadline, meanwhile);
}

std::string Engine::describeLink(Group& group, const Operation& operation) {
  const EngineLock lock(core_->state);
  return dlslime::describeLink(group, operation);
}

std::string Engine::describePending(Group& group, size_t most) {
  const EngineLock lock(core_->state);
  return dlslime::describePending(group, most);
}

std::string Engine::describeFailures(Group& group) {
  const EngineLock lock(core_->state);
  return dlslime::describeFailures(group);
}

bool Engine::hasFailedPeer(Group& group) {
  return core_->groups.hasFailedPeer(group);
}

bool Engine::hasAbortedPeer(Group& group) {
  const EngineLock lock(core_->state);
  for (int rank = 0; rank < group.size(); ++rank) {
    if (group.link(rank).aborted) {
      return true;
    }
  }
  return false;
}

size_t Engine::connections() {
  const EngineLock lock(core_->state);
  return core_->state.channels.size();
}

size_t Engine::groups() {
  const EngineLock lock(core_->state);
  return core_->state.groupRegistry.size();
}

const Config& Engine::config() const {
  return core_->state.config;
}

const std::string& Engine::socketName() const {
  return core_->wireUp.socketName();
}

const GroupOptions& Engine::optionsOf(const Group& group) {
  return group.options();
}

std::vector<std::string> Engine::ownAddresses(
    const std::string& wanted,
    const std::string& setting) {
  return requiredAddresses(wanted, setting);
}

std::vector<RouteReport> Engine::routesOfMachine() {
  const Transports transports(Config::fromEnvironment());
  std::vector<RouteReport> reports;
  for (const auto& [route, transport, reason] : transports.routes()) {
    std::string text = reason;
    try {
      text = transport == nullptr ? text : transport->describe();
    } catch (const Error& error) {
      text = error.what();
    }
    reports.push_back({route, text});
  }
  return reports;
}

int Engine::deviceOf(const std::byte* address) {
  return dlslime::deviceOf(address);
}

void Engine::awaitUntil(Group& group, TimePoint when) {
  group.awaitUntil(when);
}

std::shared_ptr<Accelerator::StreamBlock> Engine::blockStream(
    const DeviceStream& stream,
    Operation& operation) {
  std::shared_ptr<Accelerator::StreamBlock> hold =
      core_->state.needAccelerator().hold(stream);
  if (hold) {
    operation.letGoWhenDone(hold);
  }
  return hold;
}

// A driver call under the lock may be kept from returning by a stream that is
// held back, and letting the stream go needs the lock.
bool Engine::responds(milliseconds patience) {
  constexpr milliseconds kLook{1};
  const auto deadline = deadlineAfter(patience);
  while (!core_->state.mutex.try_lock()) {
    if (Clock::now() >= deadline) {
      return false;
    }
    std::this_thread::sleep_for(kLook);
  }
  const EngineLock lock(core_->state, std::adopt_lock);
  return true;
}

} // namespace dlslime
