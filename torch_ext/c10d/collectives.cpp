#include "torch_ext/c10d/collectives.h"

#include <ATen/ThreadLocalState.h>

#include <system_error>
#include <thread>

#include "base/leak_on_purpose.h"
#include "base/random.h"
#include "base/threads/mutex.h"
#include "torch_ext/c10d/work_future.h"
#include "torch_ext/support/python_end.h"

namespace dlslime {

namespace {

// First tag of the stores' messages, before the device type is added. Tags of
// users are below 2^31.
constexpr uint32_t kStoreTag = 0x80000000;
constexpr size_t kNonceBytes = 16;

// Returns a random number, drawn by rank 0 for all ranks.
std::string agreeNonce(MessageStore& store, int rank) {
  if (rank == 0) {
    store.set("nonce", hex(randomBytes(kNonceBytes)));
  }
  return store.get_to_str("nonce");
}

std::string nameOf(c10::DeviceType device) {
  return c10::DeviceTypeName(device, /*lower_case=*/true);
}

// A backend made by another thread, or the reason why there is none. Waits by
// the monotonic clock, for which std::future calls a newer C++ library.
class MadeBackend {
 public:
  void set(
      const Collectives::BackendPtr& backend,
      const std::exception_ptr& problem) {
    const MutexLock guard(mutex_);
    backend_ = backend;
    problem_ = problem;
    set_ = true;
    changed_.notifyAll();
  }
  // False: not made within `most`.
  bool await(milliseconds most) {
    MutexLock lock(mutex_);
    const auto deadline = deadlineAfter(most);
    while (!set_ && changed_.waitUntil(lock, deadline)) {
    }
    return set_;
  }
  Collectives::BackendPtr get() {
    const MutexLock guard(mutex_);
    if (problem_) {
      std::rethrow_exception(problem_);
    }
    return backend_;
  }

 private:
  Mutex mutex_;
  Condition changed_;
  bool set_ GUARDED_BY(mutex_) = false;
  Collectives::BackendPtr backend_ GUARDED_BY(mutex_);
  std::exception_ptr problem_ GUARDED_BY(mutex_);
};

} // namespace

// Returns the set-up of a device type, with mutex_ held. Throws if no
// collective can begin any more.
Collectives::Setup& Collectives::usableLocked(c10::DeviceType device) {
  TORCH_CHECK_WITH(
      DistBackendError,
      !closed_,
      "dlslime: the process group has been shut down");
  auto& setup = setups_[device];
  TORCH_CHECK_WITH(
      DistBackendError,
      setup.failure.empty(),
      "dlslime: collectives need a new process group now, since ",
      setup.failure);
  return setup;
}

void Collectives::begin(
    c10::DeviceType device,
    std::chrono::milliseconds limit,
    Begin begin,
    WhileWaiting whileWaiting) {
  BackendPtr backend;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto& setup = usableLocked(device);
    if (setup.backend && setup.waiting.empty()) {
      backend = setup.backend;
    } else {
      setup.waiting.push_back(sharedWithPython(Waiting{
          [asCaller = at::ThreadLocalState(), begin = std::move(begin)](
              const BackendPtr& made, const std::exception_ptr& problem) {
            const at::ThreadLocalStateGuard guard(asCaller);
            return begin(made, problem);
          },
          std::move(whileWaiting)}));
      if (setup.waiting.size() > 1) {
        return; // a thread is running
      }
    }
  }
  if (backend) {
    begin(backend, nullptr);
    return;
  }
  const auto work = [self = shared_from_this(), device, limit]() mutable {
    self->run(device, limit);
    dropOrLeak(self);
  };
  try {
    std::thread(work).detach();
  } catch (const std::system_error&) { // no thread can be started
    auto here = work;
    here();
  }
}

Collectives::BackendPtr Collectives::await(
    c10::DeviceType device,
    std::chrono::milliseconds limit) {
  const auto made = std::make_shared<MadeBackend>();
  begin(
      device,
      limit,
      [made](const BackendPtr& backend, const std::exception_ptr& problem) {
        made->set(backend, problem);
        return true;
      },
      [] {});
  const auto deadline = deadlineAfter(limit);
  while (!made->await(kSignalsEvery)) {
    heedSignals();
    TORCH_CHECK_WITH(
        DistBackendError,
        Clock::now() < deadline + kLag,
        "dlslime: ",
        describe(device, describeLate(device, limit)));
  }
  return made->get();
}

// Makes the backend if missing, then begins the waiting collectives. Runs on a
// separate thread.
void Collectives::run(c10::DeviceType device, std::chrono::milliseconds limit) {
  std::exception_ptr problem;
  try {
    bool known = false;
    {
      const std::lock_guard<std::mutex> guard(mutex_);
      known = setups_[device].backend != nullptr;
    }
    if (!known) {
      adopt(device, make(device, limit));
    }
  } catch (...) {
    problem = std::current_exception();
  }
  beginAll(device, problem);
}

void Collectives::beginAll(c10::DeviceType device, std::exception_ptr problem) {
  std::unique_lock<std::mutex> lock(mutex_);
  auto& setup = setups_[device];
  while (!setup.waiting.empty()) {
    // The emptied entry stays in the queue meanwhile, so that no later
    // collective overtakes the present one.
    auto next = std::move(setup.waiting.front());
    const auto backend = setup.backend;
    lock.unlock();
    const bool begun = next->begin(problem ? nullptr : backend, problem);
    next.reset(); // may take the GIL
    if (!begun && !problem) {
      problem =
          fail(device, "a collective was given up before all ranks had come");
    }
    lock.lock();
    setup.waiting.pop_front();
  }
}

void Collectives::tellWaiting(c10::DeviceType device) {
  std::deque<std::shared_ptr<Waiting>> all;
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    all = setups_[device].waiting;
  }
  for (const auto& entry : all) {
    if (entry) {
      entry->whileWaiting();
    }
  }
}

c10::intrusive_ptr<MessageStore> Collectives::openStore(
    c10::DeviceType device,
    std::chrono::milliseconds limit) {
  const auto store = c10::make_intrusive<MessageStore>(
      handle_,
      kStoreTag + static_cast<uint32_t>(device),
      limit,
      [weak = weak_from_this(), device] {
        if (const auto self = weak.lock()) {
          self->tellWaiting(device);
        }
      });
  const std::lock_guard<std::mutex> guard(mutex_);
  setups_[device].store = store;
  return store;
}

Collectives::BackendPtr Collectives::make(
    c10::DeviceType device,
    std::chrono::milliseconds limit) {
  const auto store = openStore(device, limit);
  try {
    const auto nonce = agreeNonce(*store, handle_->rank());
    auto backend = make_(nameOf(device), nonce, store, limit);
    store->finish();
    return backend;
  } catch (const std::exception& error) {
    const std::string text = error.what();
    // Peers learn of the interpreter's end only from the end of the process.
    if (!pythonEnds()) {
      store->fail(text.substr(0, text.find('\n')));
    }
    std::rethrow_exception(fail(device, store->problem()));
  }
}

void Collectives::adopt(c10::DeviceType device, const BackendPtr& backend) {
  const std::lock_guard<std::mutex> guard(mutex_);
  auto& setup = setups_[device];
  setup.store.reset();
  if (!uid_.empty()) {
    backend->setGroupUid(uid_);
    backend->setGroupDesc(description_);
  }
  setup.backend = backend;
  if (leaks_) {
    leakOnPurpose(std::make_shared<BackendPtr>(backend));
  }
}

// Records the failure, and returns the error for the waiting collectives.
std::exception_ptr Collectives::fail(
    c10::DeviceType device,
    const std::string& why) {
  const auto text = describe(device, why);
  const std::lock_guard<std::mutex> guard(mutex_);
  auto& setup = setups_[device];
  setup.store.reset();
  setup.failure = text;
  return makeException(Status(ErrorCode::kPeerFailed, text));
}

std::string Collectives::describeLate(
    c10::DeviceType device,
    std::chrono::milliseconds limit) {
  c10::intrusive_ptr<MessageStore> store;
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    store = setups_[device].store;
  }
  return store ? store->describeLate(limit)
               : "Timed out after " + std::to_string(limit.count()) + " ms";
}

std::string Collectives::describe(
    c10::DeviceType device,
    const std::string& why) const {
  return "the first collective of group \"" + handle_->options().name + "\" (" +
      std::to_string(handle_->size()) + " ranks) on " + nameOf(device) +
      " tensors: " + why;
}

std::vector<Collectives::BackendPtr> Collectives::made() {
  const std::lock_guard<std::mutex> guard(mutex_);
  std::vector<BackendPtr> all;
  for (const auto& [device, setup] : setups_) {
    if (setup.backend) {
      all.push_back(setup.backend);
    }
  }
  return all;
}

void Collectives::setNames(
    const std::string& uid,
    const std::string& description) {
  const std::lock_guard<std::mutex> guard(mutex_);
  uid_ = uid;
  description_ = description;
  for (const auto& [device, setup] : setups_) {
    if (setup.backend) {
      setup.backend->setGroupUid(uid);
    }
  }
}

void Collectives::leak() {
  const std::lock_guard<std::mutex> guard(mutex_);
  leaks_ = true;
  leakOnPurpose(
      std::make_shared<BackendPtr>(setups_[c10::DeviceType::CPU].backend));
}

void Collectives::close() {
  const std::lock_guard<std::mutex> guard(mutex_);
  closed_ = true;
}

} // namespace dlslime
