#include "engine/core/posting.h"

#include "engine/state/preparing.h"

namespace dlslime {

namespace {
// Sends between two looks for news: a look costs about 0.1 us, and credit comes
// for many messages at once.
constexpr uint64_t kSendsPerLook = 16;
// Messages taken per posted receive: enough for a posting thread to keep up
// with arrivals, and few enough not to overtake its receives.
constexpr int kMessagesPerReceive = 2;
// Largest transfer in bytes that the posting thread copies itself, so that no
// thread has to be woken.
constexpr size_t kMostInline = 64 * 1024;
} // namespace

void Posting::send(Group& group, const OperationPtr& operation) {
  prepare(group, *operation);
  EngineLock lock(state_);
  enterPrepared(lock, group, *operation);
  if (operation->prepared) {
    // The receiver may have advertised memory for the message.
    driver_.lookFor(*operation);
  }
  group.post(operation);
  // A send that found no room may find room after a look. Looks from time to
  // time also take the peer's credit; without credit eager sends become
  // rendezvous sends.
  if (!operation->done() || ++sends_ % kSendsPerLook == 0) {
    driver_.lookFor(*operation);
  }
  afterPost(lock, group, *operation);
}

void Posting::receive(Group& group, const OperationPtr& operation) {
  prepare(group, *operation);
  EngineLock lock(state_);
  enterPrepared(lock, group, *operation);
  group.post(operation);
  if (!operation->done()) {
    // No thread waits while thousands of receives are posted, so messages for
    // earlier receives are taken now. Messages for later receives are left:
    // they would be kept aside and copied twice.
    driver_.lookFor(*operation, kMessagesPerReceive);
  }
  afterPost(lock, group, *operation);
}

void Posting::transfer(Group& group, const TransferPtr& transfer) {
  registerHere(group, *transfer);
  if (transfer->onDevice) {
    meetStream(*transfer);
  }
  driver_.progress().noteLook();
  EngineLock lock(state_);
  group.post(transfer);
  CopyJob job;
  std::shared_ptr<PeerChannel> channel;
  if (transfer->stage == Operation::Stage::kTransferring &&
      !transfer->onDevice && transfer->totalBytes() <= kMostInline) {
    channel = group.link(transfer->peer()).channel;
    if (!channel->claimCopy(job)) {
      channel = nullptr;
    }
  }
  if (!channel) {
    afterPost(lock, group, *transfer);
    return;
  }
  lock.leave();
  for (bool more = true; more;) { // a claimed copy must be made
    job.error = job.run(job);
    const EngineLock again(state_);
    channel->finishCopy(job);
    if (channel->poll()) {
      state_.retireFailed();
    }
    more = !transfer->done() && channel->claimCopy(job);
  }
}

FlightLog Posting::flightLog() {
  const double tick = Ticks::nanoseconds(); // may wait: not under the lock
  const EngineLock lock(state_);
  return state_.completions.recorder().log(tick);
}

std::vector<OperationReport> Posting::operationReports() {
  const double tick = Ticks::nanoseconds();
  const EngineLock lock(state_);
  return reportTimes(state_.completions.recorder(), tick);
}

// Called before the lock is taken.
void Posting::prepare(Group& group, Operation& operation) {
  if (operation.ofDevice()) {
    meetStream(operation);
  }
  prepareMemory(group, operation);
  driver_.progress().noteLook();
}

// Marks the operation's place in the caller's stream. Called before the lock is
// taken: the caller's thread talks to its own stream. The stream itself copies
// the bytes of a small send into pinned memory, so that the send is like any
// send of processor memory once the stream has come to the mark.
void Posting::meetStream(Operation& operation) {
  auto& gpu = *operation.onDevice;
  gpu.accelerator = &state_.needAccelerator();
  const auto view = operation.view();
  Accelerator::Download before;
  std::shared_ptr<std::byte> pinned;
  if (operation.kind() == Operation::Kind::kSend &&
      view.size <= state_.config.eagerLimitBytes) {
    pinned = gpu.accelerator->pin(view.device, view.size);
    before = {pinned.get(), view.data, view.size};
  }
  gpu.mark = gpu.accelerator->mark(gpu.stream, before);
  gpu.staged = std::move(pinned);
}

// Called without the lock: registering memory concerns only the caller and the
// caller's memory.
void Posting::prepareMemory(Group& group, Operation& operation) {
  auto* const registrar = group.links().registrar(operation.peer());
  if (lacksPreparing(operation, registrar)) {
    operation.prepared = registrar->prepare(operation.view());
    operation.preparedBy = registrar;
  }
}

// Called before anything is posted. Prepares again if the pair was connected,
// or got a new connection, while the memory was being prepared without the
// lock.
void Posting::enterPrepared(
    EngineLock& lock,
    Group& group,
    Operation& operation) {
  while (lacksPreparing(operation, group.links().registrar(operation.peer()))) {
    lock.leave();
    prepareMemory(group, operation);
    lock.enterAgain();
  }
}

// Registers the local memory of a transfer on the caller's thread, before the
// lock is taken, as prepare() does.
void Posting::registerHere(Group& group, const Transfer& transfer) {
  auto* const registrar = group.links().registrar(transfer.peer());
  if (registrar == nullptr) {
    return; // nothing to do, or the route is not known yet
  }
  std::vector<RegionPtr> missing; // most often none
  {
    const EngineLock lock(state_);
    for (const auto& part : transfer.parts()) {
      if (!part.local->closing && !part.local->refusedBy(registrar) &&
          part.local->registration(registrar) == nullptr) {
        part.local->beginRegistering(); // until our results are dropped
        missing.push_back(part.local);
      }
    }
  }
  if (missing.empty()) {
    return;
  }
  for (const auto& region : missing) {
    try {
      const auto result = registrar->registerRegion(region->view());
      const EngineLock lock(state_);
      region->keepRegistration(registrar, result);
    } catch (const Error& error) {
      if (region->accelerator() !=
          nullptr) { // a GPU registration is tried only once
        state_.registrationThread.logRefused(*region, error);
        const EngineLock lock(state_);
        region->noteRefused(registrar);
      } // otherwise the failure shows when the transfer is started
      break;
    }
  }
  const EngineLock lock(state_);
  for (const auto& region : missing) {
    region->endRegistering();
  }
}

void Posting::afterPost(
    EngineLock& lock,
    Group& group,
    const Operation& operation) {
  // A sleeping thread learns of peers' work by descriptors, but not of work
  // posted by threads of its own process.
  const bool wake = operation.stage == Operation::Stage::kPulling ||
      operation.stage == Operation::Stage::kTransferring ||
      group.links().reachesItself(operation.peer());
  if (operation.onDevice || group.holds()) {
    driver_.watchGpus(group.holds() || state_.watchesGpus);
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
    driver_.progress().wake();
  }
}

} // namespace dlslime
