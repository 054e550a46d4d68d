#include "torch_ext/c10d/collective_runner.h"

#include "torch_ext/support/checked_call.h"
#include "torch_ext/support/timeouts.h"

namespace dlslime {

namespace {

// Begins a collective of CPU tensors. Throws if the collective is refused at
// once.
void beginNow(
    Collectives& collectives,
    const c10::intrusive_ptr<CollectiveWork>& work,
    std::chrono::milliseconds limit,
    Collectives::Begin begin) {
  try {
    collectives.begin(c10::DeviceType::CPU, limit, std::move(begin), [work] {
      work->endIfLate();
    });
  } catch (...) { // the work never begins
    work->begin(std::current_exception(), {});
    throw;
  }
  if (const auto refusal = work->refusal()) {
    std::rethrow_exception(refusal);
  }
}

} // namespace

CollectiveRunner::CollectiveRunner(
    int rank,
    int size,
    std::shared_ptr<GroupHandle> handle,
    MakeCollectives makeCollectives)
    : rank_(rank),
      size_(size),
      handle_(std::move(handle)),
      collectives_(
          std::make_shared<Collectives>(handle_, std::move(makeCollectives))),
      monitoredBarrier_(handle_) {}

// Throws if collectives cannot be called. Comes before any call that takes a
// lock: a forked child may inherit a held lock.
void CollectiveRunner::requireUsable() const {
  checkedCall([&] { handle_->requireUsable(); });
  TORCH_CHECK_WITH(
      DistBackendError,
      !aborted_.load(),
      "dlslime: the process group was aborted");
}

std::chrono::milliseconds CollectiveRunner::limitOf(
    std::chrono::milliseconds timeout) const {
  return timeout == c10d::kUnsetTimeout
      ? handle_->timeout.load()
      : checkedTimeout("a collective's", timeout);
}

CollectiveRunner::WorkPtr CollectiveRunner::runOnCpu(
    c10d::OpType type,
    uint64_t number,
    std::chrono::milliseconds limit,
    Ask ask) {
  const auto work = c10::make_intrusive<CollectiveWork>(
      CollectiveWork::Setup{handle_, live_, collectives_, type, number, limit});
  const auto begin = [work, ask = std::move(ask)](
                         const Collectives::BackendPtr& backend,
                         const std::exception_ptr& problem) {
    return work->begin(
        problem, [&](const auto& left) { return ask(*backend, left); });
  };
  try {
    beginNow(*collectives_, work, limit, begin);
  } catch (...) {
    sequence_.fetch_sub(1); // no rank counts a refused call
    throw;
  }
  if (aborted_.load()) { // aborted during the call
    work->abort();
  }
  coalescing_.note(work);
  return work;
}

void CollectiveRunner::monitoredBarrier(
    std::chrono::milliseconds timeout,
    bool waitAllRanks) {
  const auto limit = limitOf(timeout);
  requireUsable();
  sequence_.fetch_add(1);
  monitoredBarrier_.run(limit, waitAllRanks);
}

void CollectiveRunner::endAll(const Status& why) {
  live_->endAll(why);
  for (const auto& backend : collectives_->made()) {
    backend->abort();
  }
}

// Gloo's destructor waits for collectives under way, perhaps for ever.
void CollectiveRunner::leakIfBusy(bool always) {
  if (always || live_->busy()) {
    collectives_->leak();
  }
}

} // namespace dlslime
