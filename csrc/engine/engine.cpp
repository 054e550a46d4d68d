#include "engine/engine.h"

#include <unistd.h>

#include <algorithm>
#include <thread>

#include "base/fork_guard.h"
#include "base/log.h"
#include "base/random.h"
#include "engine/bootstrap/bounded_store.h"
#include "engine/progress/engine_thread.h"
#include "engine/progress/syscall_cost.h"
#include "engine/state/engine_lock.h"
#include "engine/state/preparing.h"

namespace dlslime {

namespace {
// Sends between two looks for news: a look costs about 0.1 us, and credit comes
// for many messages at once.
constexpr uint64_t kSendsPerLook = 16;
// Messages taken per posted receive: enough for a posting thread to keep up
// with arrivals, and few enough not to overtake its receives.
constexpr int kMessagesPerReceive = 2;
// Time at the engine's end for copies hindered by a peer.
constexpr milliseconds kCopyPatience{1000};

// Returns the nonce of this process, shared by all engines in the life of the
// process.
const std::string& processNonce() {
  static const auto* nonce = new std::string(dlslime::hex(randomBytes(8)));
  return *nonce;
}

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

// Runs a step of the engine's end, perhaps from the beginning again. A step
// that repeatedly finds no memory is left out: the process goes on without an
// engine, and peers see the end at the sockets.
template <typename Step>
void endBy(const Step& step) {
  constexpr int kTries = 3;
  for (int i = 0; i < kTries; ++i) {
    if (surviveWantOfMemory("the end of this process's engine", step)) {
      return;
    }
  }
}

constexpr uint64_t kWakeTokens = 1ULL
    << 62; // the first token of wakeFds(), by transport index
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

void refuseInForkedChild() {
  if (inForkedChild()) {
    throw Error(
        ErrorCode::kUnusable,
        "this process was forked from one that uses dlslime: the connections "
        "belong to the parent. Start workers by spawn or forkserver, or call "
        "init_process_group only in the child");
  }
}

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
    : state_(config),
      progress_(
          *this,
          state_.epoll,
          config.spin.value_or(usualSpin()),
          Progress::kMostSpin,
          config.tick.value_or(backgroundTick())),
      copier_([this](const ClaimedCopy& made, bool more) {
        return finishCopy(made, more);
      }),
      wireUp_(state_) {
  static_cast<void>(outOfMemory()); // made while memory is left
  state_.notifyDone = [this] { progress_.notifyDone(); };
  uint64_t token = kWakeTokens;
  for (const auto& transport : state_.transports.all()) {
    if (auto* const wake = transport->wakeSource()) {
      for (const int fd : wake->wakeFds()) {
        state_.epoll.add(fd, token);
      }
    }
    ++token;
  }
  progress_.start();
  wireUp_.start();
}

Engine::~Engine() {
  endBy([this] { recallAll(); });
  wireUp_.stop();
  progress_.stop();
  copier_.stop(kCopyPatience);
  state_.registrationThread.stop();
  state_.gpuReclaimer.stop();
  endBy([this] { drainGpus(); });
  endBy([this] {
    const EngineLock lock(state_);
    for (const auto& group : state_.groupRegistry.all()) {
      group->addresses().close();
    }
    state_.retireFailed();
  });
  // Connections are closed before failAll() gives back memory that they may
  // touch.
  endBy([this] { state_.closer.finish(); });
  endBy([this] {
    const EngineLock lock(state_);
    state_.channels.failAll(
        Status(ErrorCode::kCancelled, "this process's engine has stopped"));
  });
  endBy([this] { state_.closer.finishAll(); });
}

std::shared_ptr<Group> Engine::join(GroupOptions options) {
  refuseInForkedChild();
  const BoundedStore store(options.rendezvous, deadlineAfter(options.timeout));
  const int rank = options.rank;
  // Counts the incarnations of the group in this process and store, across
  // engines. Each process counts under a key of its own, so that no stale count
  // is continued.
  const auto epoch = store.increment(
      "epoch/" + std::to_string(getpid()) + "/" + processNonce() + "/" +
      std::to_string(rank));
  AddressRecord record;
  record.identity = state_.self;
  record.token = state_.token;
  record.socketName = wireUp_.socketName();
  record.addresses = wireUp_.addresses();
  record.epoch = epoch;
  record.joined = options.joined = nowSinceBoot();
  std::shared_ptr<Group> group;
  {
    const EngineLock lock(state_);
    group = state_.groupRegistry.add(epoch, std::move(options));
  }
  record.group = group->id();
  try {
    store.set(addressKey(rank), encode(record));
  } catch (const Error&) {
    const EngineLock lock(state_);
    state_.groupRegistry.remove(*group);
    throw;
  }
  group->addresses().readAhead();
  return group;
}

// Called before the lock is taken.
void Engine::prepare(Group& group, Operation& operation) {
  if (operation.ofDevice()) {
    meetStream(operation);
  }
  prepareMemory(group, operation);
  progress_.noteLook();
}

// Called without the lock: registering memory concerns only the caller and the
// caller's memory.
void Engine::prepareMemory(Group& group, Operation& operation) {
  auto* const registrar = group.links().registrar(operation.peer());
  if (lacksPreparing(operation, registrar)) {
    operation.prepared = registrar->prepare(operation.view());
    operation.preparedBy = registrar;
  }
}

// Called before anything is posted. Prepares again if the pair was connected,
// or got a new connection, while the memory was being prepared without the
// lock.
void Engine::enterPrepared(
    EngineLock& lock,
    Group& group,
    Operation& operation) {
  while (lacksPreparing(operation, group.links().registrar(operation.peer()))) {
    lock.leave();
    prepareMemory(group, operation);
    lock.enterAgain();
  }
}

void Engine::send(Group& group, const OperationPtr& operation) {
  prepare(group, *operation);
  EngineLock lock(state_);
  enterPrepared(lock, group, *operation);
  if (operation->prepared) {
    // The receiver may have advertised memory for the message.
    lookFor(*operation);
  }
  group.post(operation);
  // A send that found no room may find room after a look. Looks from time to
  // time also take the peer's credit; without credit eager sends become
  // rendezvous sends.
  if (!operation->done() || ++sends_ % kSendsPerLook == 0) {
    lookFor(*operation);
  }
  afterPost(lock, group, *operation);
}

void Engine::receive(Group& group, const OperationPtr& operation) {
  prepare(group, *operation);
  EngineLock lock(state_);
  enterPrepared(lock, group, *operation);
  group.post(operation);
  if (!operation->done()) {
    // No thread waits while thousands of receives are posted, so messages for
    // earlier receives are taken now. Messages for later receives are left:
    // they would be kept aside and copied twice.
    lookFor(*operation, kMessagesPerReceive);
  }
  afterPost(lock, group, *operation);
}

void Engine::afterPost(
    EngineLock& lock,
    Group& group,
    const Operation& operation) {
  // A sleeping thread learns of peers' work by descriptors, but not of work
  // posted by threads of its own process.
  const bool wake = operation.stage == Operation::Stage::kPulling ||
      operation.stage == Operation::Stage::kTransferring ||
      group.links().reachesItself(operation.peer());
  if (operation.onDevice || group.holds()) {
    watchGpus(group.holds() || state_.watchesGpus);
  }
  std::vector<int> ranks;
  if (!group.links().takeUnresolved(ranks)) {
    lock.leave();
  } else {
    const auto shared = state_.groupRegistry.find(group.id());
    lock.leave();
    if (shared) {
      wireUp_.resolve(shared, ranks);
    }
  }
  if (wake) {
    progress_.wake();
  }
}

bool Engine::wait(const Operation& operation, Deadline deadline) {
  return progress_.wait(operation, deadline);
}

bool Engine::lookAtAll() {
  return lookAtRest(state_.channels.looks().lookAtAll(kMessagesPerPoll));
}

// A thread that waits looks often, so a few quiet channels each time are
// enough.
bool Engine::lookWhileAwaiting(const Operation& operation) {
  auto& looks = state_.channels.looks();
  auto* const awaited = state_.groupRegistry.channelTo(operation);
  const bool any = looks.lookFor(awaited, kMessagesPerPoll);
  return lookAtRest(looks.lookInTurn(kMessagesPerPoll) || any);
}

bool Engine::lookFor(const Operation& operation, int most) {
  auto* const awaited = state_.groupRegistry.channelTo(operation);
  return lookAtRest(state_.channels.looks().lookFor(awaited, most));
}

// Ends a look, in which the channels have had news if `any`.
bool Engine::lookAtRest(bool any) {
  if (auto* const gpus = state_.accelerator()) {
    any |= lookAtGpus(*gpus);
  }
  if (any && state_.channels.someOver()) {
    state_.retireFailed();
  }
  return any;
}

bool Engine::endsSoon() {
  if (!state_.mutex.lockIfUnwanted()) {
    return false;
  }
  const EngineLock lock(state_, std::adopt_lock);
  return state_.channels.endsSoon();
}

bool Engine::beginSleep() {
  for (const auto& transport : state_.transports.all()) {
    if (auto* const wake = transport->wakeSource()) {
      wake->beginSleep();
    }
  }
  EngineLock lock(state_);
  const bool any = lookAtAll();
  return !giveCopy(lock) && !any;
}

void Engine::endSleep() {
  for (const auto& transport : state_.transports.all()) {
    if (auto* const wake = transport->wakeSource()) {
      wake->endSleep();
    }
  }
}

void Engine::onReady(const std::vector<uint64_t>& tokens) {
  for (const auto token : tokens) {
    if (token >= kWakeTokens) {
      state_.transports.all()[token - kWakeTokens]
          ->wakeSource()
          ->drainWakeFds();
      continue;
    }
    const EngineLock lock(state_);
    state_.channels.onSocket(token);
    state_.retireFailed();
  }
}

} // namespace dlslime
