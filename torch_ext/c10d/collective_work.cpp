#include "torch_ext/c10d/collective_work.h"

#include <ATen/ThreadLocalState.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <cctype>
#include <system_error>
#include <thread>

#include "torch_ext/c10d/work_future.h"
#include "torch_ext/support/callback_thread.h"
#include "torch_ext/support/python_end.h"
#include "torch_ext/support/timeouts.h"

namespace dlslime {

namespace {

// A collective that has waited for its turn for up to kOften leaves the full
// time-out to Gloo.
constexpr milliseconds kOften{100};

std::string textOf(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& problem) {
    return problem.what();
  } catch (...) {
    return "an unknown error";
  }
}

// Returns the first line without the place in Gloo's sources. The lines after
// the first are a C++ stack.
std::string withoutPlace(const std::string& text) {
  const auto line = text.substr(0, text.find('\n'));
  const auto place = line.rfind('[', 0) == 0 ? line.find("] ") : line.npos;
  return place == line.npos ? line : line.substr(place + 2);
}

void complete(
    c10::ivalue::Future& future,
    const c10::intrusive_ptr<c10::ivalue::Future>& inner,
    const std::exception_ptr& error) {
  if (error) {
    future.setError(error);
  } else {
    future.markCompleted(
        inner ? inner->value() : c10::IValue(std::vector<at::Tensor>()));
  }
}

c10::intrusive_ptr<c10::ivalue::Future> futureOf(c10d::Work& work) {
  try {
    return work.getFuture();
  } catch (const std::exception&) { // torch has no other way to ask
    return nullptr;
  }
}

} // namespace

void CollectiveEnd::end(std::exception_ptr error) {
  const MutexLock guard(mutex_);
  if (ended_) {
    return;
  }
  ended_ = true;
  error_ = std::move(error);
  changed_.notifyAll();
  if (future_) {
    completeLocked();
  }
}

bool CollectiveEnd::ended() const {
  const MutexLock guard(mutex_);
  return ended_;
}

std::exception_ptr CollectiveEnd::error() const {
  const MutexLock guard(mutex_);
  return error_;
}

// Waits like WorkFuture::await().
void CollectiveEnd::awaitFuture() {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  uint64_t ticket = 0;
  {
    const MutexLock guard(mutex_);
    future = future_;
    ticket = ticket_;
  }
  if (!future || ticket == 0 || future->completed() ||
      !CallbackThread::concurrent().awaitTurn(ticket)) {
    return;
  }
  while (!future->completed() && !pythonEnds()) {
    std::this_thread::yield();
  }
}

bool CollectiveEnd::await(TimePoint until) {
  MutexLock lock(mutex_);
  while (!ended_ && changed_.waitUntil(lock, until)) {
  }
  return ended_;
}

// Completes the future on a callback thread, because callbacks may take the GIL
// and run long.
void CollectiveEnd::completeLocked() {
  ticket_ = CallbackThread::concurrent().post(
      [future = future_, inner = inner_, error = error_] {
        complete(*future, inner, error);
      });
}

// Makes a future of any type, because the type of Gloo's future is unknown
// before Gloo's work has begun.
c10::intrusive_ptr<c10::ivalue::Future> CollectiveEnd::future() {
  const MutexLock guard(mutex_);
  if (!future_) {
    future_ = c10::make_intrusive<c10::ivalue::Future>(c10::AnyType::get());
    if (ended_) { // no callbacks are attached yet
      complete(*future_, inner_, error_);
    }
  }
  return future_;
}

void CollectiveEnd::follow(c10::intrusive_ptr<c10::ivalue::Future> inner) {
  const MutexLock guard(mutex_);
  inner_ = std::move(inner);
}

std::optional<c10::IValue> CollectiveEnd::value() const {
  const MutexLock guard(mutex_);
  if (!inner_ || !inner_->completed() || inner_->hasError()) {
    return std::nullopt;
  }
  return inner_->value();
}

void LiveCollectives::add(std::weak_ptr<CollectiveEnd> end) {
  count_.fetch_add(1);
  const MutexLock guard(mutex_);
  std::erase_if(ends_, [](const auto& entry) {
    const auto known = entry.lock();
    return !known || known->ended();
  });
  ends_.push_back(std::move(end));
}

void LiveCollectives::endAll(const Status& why) {
  std::vector<std::weak_ptr<CollectiveEnd>> ends;
  {
    const MutexLock guard(mutex_);
    ends = std::exchange(ends_, {});
  }
  for (const auto& entry : ends) {
    if (const auto end = entry.lock()) {
      end->end(makeException(why));
    }
  }
}

CollectiveWork::CollectiveWork(Setup setup)
    : Work(setup.handle->rank(), setup.type),
      setup_(std::move(setup)),
      deadline_(deadlineAfter(setup_.limit)) {
  setup_.live->add(end_);
}

bool CollectiveWork::begin(
    const std::exception_ptr& problem,
    const Call& call) {
  {
    const MutexLock guard(mutex_);
    decided_ = true;
  }
  auto error = problem;
  const bool wanted = !end_->ended();
  if (!error && wanted) {
    const auto now = Clock::now();
    const auto left = std::max(
        std::chrono::ceil<milliseconds>(deadline_ - now), milliseconds(1));
    try {
      const auto inner = now - begun_ > kOften ? call(left) : call({});
      follow(inner);
      return true;
    } catch (...) {
      error = std::current_exception();
      const MutexLock guard(mutex_);
      refusal_ = error;
    }
  }
  setup_.live->over(*end_, error);
  return wanted;
}

std::exception_ptr CollectiveWork::refusal() const {
  const MutexLock guard(mutex_);
  return refusal_;
}

void CollectiveWork::follow(const InnerPtr& inner) const {
  const auto future = futureOf(*inner);
  if (!future) {
    awaitEnd(inner);
    return;
  }
  end_->follow(future);
  future->addCallback(
      [end = end_, live = setup_.live](c10::ivalue::Future& ended) {
        live->over(*end, ended.hasError() ? ended.exception_ptr() : nullptr);
      });
}

// Waits for kLag after the deadline, because the store where the first
// collective meets all ranks fails a moment after the deadline, and says more.
void CollectiveWork::endIfLate() {
  if (Clock::now() < deadline_ + kLag || end_->ended()) {
    return;
  }
  {
    const MutexLock guard(mutex_);
    if (decided_) {
      return;
    }
  }
  const auto collectives = setup_.collectives.lock();
  end_->end(makeException(Status(
      ErrorCode::kTimeout,
      describe() + " failed before it could begin: " +
          (collectives
               ? collectives->describeLate(c10::DeviceType::CPU, setup_.limit)
               : "its group has ended"))));
}

std::vector<at::Tensor> CollectiveWork::result() {
  if (const auto error = exception()) {
    std::rethrow_exception(error);
  }
  TORCH_CHECK_WITH(
      DistBackendError,
      end_->ended(),
      "dlslime: ",
      describe(),
      " has not ended");
  const auto value = end_->value();
  TORCH_CHECK_WITH(
      DistBackendError,
      value && value->isTensorList(),
      "dlslime: ",
      describe(),
      " has no result of its own: use get_future().value()");
  return value->toTensorVector();
}

// Waits for the work on a new thread. A work without a future is composed of
// several works, and done by the thread that calls wait(): Gloo's
// reduce_scatter of whole tensors.
void CollectiveWork::awaitEnd(const InnerPtr& work) const {
  const auto finish = [end = end_,
                       live = setup_.live,
                       inner = work,
                       state = at::ThreadLocalState()]() mutable {
    std::exception_ptr error;
    try {
      const at::ThreadLocalStateGuard asCaller(state);
      inner->wait();
    } catch (...) {
      error = std::current_exception();
    }
    dropOrLeak(inner);
    live->over(*end, error);
  };
  try {
    std::thread(finish).detach();
  } catch (const std::system_error&) { // no thread can be started
    auto here = finish;
    here();
  }
}

std::string CollectiveWork::describe() const {
  auto name = c10d::opTypeToString(opType_);
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) {
    return static_cast<char>(std::tolower(c));
  });
  return name + " in group \"" + setup_.handle->options().name + "\"";
}

// Returns errors of dlslime unchanged. Adds the known failures of ranks to
// errors of Gloo.
std::exception_ptr CollectiveWork::exception() const {
  const auto error = end_->error();
  if (!error || error == refusal()) {
    return error;
  }
  const auto text = textOf(error);
  if (text.rfind("dlslime: ", 0) == 0) {
    return error;
  }
  const auto gone = failures();
  return makeException(Status(
      ErrorCode::kTransportFailed,
      describe() + " failed: " + withoutPlace(text) +
          (gone.empty() ? "" : " (" + gone + ")")));
}

// Describes the failed ranks. Waits for up to kLag, because a death may show at
// Gloo's sockets first, and at the engine's later.
std::string CollectiveWork::failures() const {
  auto& engine = *setup_.handle->engine;
  const auto deadline = deadlineAfter(kLag);
  for (;;) {
    auto found = engine.describeFailures(*setup_.handle->group);
    if (!found.empty() || Clock::now() >= deadline) {
      return found;
    }
    engine.poke();
    std::this_thread::sleep_for(milliseconds(1));
  }
}

void CollectiveWork::await(TimePoint deadline) {
  auto giveUp = never();
  while (!end_->await(std::min(deadline, deadlineAfter(kSignalsEvery)))) {
    const auto now = Clock::now();
    endIfLate();
    if (now >= deadline) {
      return;
    }
    heedSignals();
    if (giveUp == never() &&
        setup_.handle->engine->hasAbortedPeer(*setup_.handle->group)) {
      giveUp = now + kGrace;
    }
    // A rank that has aborted keeps Gloo's sockets open, so Gloo's work would
    // not end.
    if (now >= giveUp) {
      end_->end(std::make_exception_ptr(
          std::runtime_error("a rank has aborted the group, and Gloo has not "
                             "ended the collective since")));
    }
  }
}

bool CollectiveWork::wait(std::chrono::milliseconds timeout) {
  const StaysWhenPythonEnds stays;
  const bool own = timeout == kNoTimeout;
  await(own ? never() : deadlineAfter(checkedTimeout("a wait's", timeout)));
  TORCH_CHECK_WITH(
      DistBackendError,
      end_->ended(),
      "dlslime: ",
      describe(),
      " has not ended within ",
      timeout.count(),
      " ms: Timed out; the collective goes on");
  end_->awaitFuture();
  if (c10d::allow_inflight_collective_as_graph_input()) {
    c10d::unregister_work(
        c10::intrusive_ptr<c10d::Work>::unsafe_reclaim_from_nonowning(this));
  }
  if (const auto error = exception()) {
    std::rethrow_exception(error);
  }
  return true;
}

void CollectiveWork::abort() {
  end_->end(makeException(Status(
      ErrorCode::kCancelled, describe() + " was aborted by its caller")));
}

} // namespace dlslime
