#include "torch_ext/c10d/collectives.h"

#include <pybind11/pybind11.h>

#include <algorithm>

#include "core/keep.h"
#include "core/random.h"

namespace dlslime {

namespace {

// Tags of stores' messages, by the type of device, which no user's tag can be.
constexpr uint32_t kStoreTag = 0x80000000;
constexpr size_t kNonceBytes = 16;
constexpr milliseconds kSignalsEvery{200};

// A number that rank 0 draws.
std::string agreeNonce(MessageStore& store, int rank) {
  if (rank == 0) {
    store.set("nonce", hex(randomBytes(kNonceBytes)));
  }
  return store.get_to_str("nonce");
}

std::string nameOf(c10::DeviceType device) {
  return c10::DeviceTypeName(device, /*lower_case=*/true);
}

} // namespace

c10::intrusive_ptr<c10d::Backend> Collectives::forDevice(
    c10::DeviceType device,
    std::chrono::milliseconds limit) {
  if (auto found = findOrBegin(device, deadlineAfter(limit))) {
    return found;
  }
  BackendPtr backend;
  std::string failure;
  std::exception_ptr error;
  try {
    backend = make(device, limit, failure);
  } catch (...) {
    error = std::current_exception();
  }
  const std::lock_guard<std::mutex> guard(mutex_);
  maker_.reset();
  changed_.notify_all();
  if (error) {
    failures_[device] = describe(device, failure);
    std::rethrow_exception(error);
  }
  if (!uid_.empty()) {
    backend->setGroupUid(uid_);
    backend->setGroupDesc(description_);
  }
  backends_[device] = backend;
  return backend;
}

Collectives::BackendPtr Collectives::findLocked(c10::DeviceType device) {
  TORCH_CHECK_WITH(
      DistBackendError,
      !closed_,
      "dlslime: the process group has been shut down");
  const auto failure = failures_.find(device);
  TORCH_CHECK_WITH(
      DistBackendError,
      failure == failures_.end(),
      "dlslime: collectives need a new process group now, since ",
      failure->second);
  const auto found = backends_.find(device);
  return found == backends_.end() ? nullptr : found->second;
}

// Null: the caller is to make it.
Collectives::BackendPtr Collectives::findOrBegin(
    c10::DeviceType device,
    TimePoint deadline) {
  const auto self = std::this_thread::get_id();
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    if (auto found = findLocked(device)) {
      return found;
    }
    if (!maker_) {
      maker_ = self;
      return nullptr;
    }
    TORCH_CHECK_WITH(
        DistBackendError,
        *maker_ != self && Clock::now() < deadline,
        "dlslime: the group's first collective still waits for other ranks, "
        "in ",
        *maker_ == self ? "the code that a signal has interrupted"
                        : "another thread: Timed out");
    changed_.wait_until(lock, std::min(deadline, deadlineAfter(kSignalsEvery)));
    lock.unlock();
    heedSignals();
    lock.lock();
  }
}

// `failure` is set before it throws.
Collectives::BackendPtr Collectives::make(
    c10::DeviceType device,
    std::chrono::milliseconds limit,
    std::string& failure) {
  const auto store = c10::make_intrusive<MessageStore>(
      handle_, kStoreTag + static_cast<uint32_t>(device), limit);
  try {
    const auto nonce = agreeNonce(*store, handle_->group->rank());
    auto backend = make_(nameOf(device), nonce, store, limit);
    store->finish();
    return backend;
  } catch (const pybind11::error_already_set&) {
    store->fail("a handler of a signal has ended it");
    failure = store->problem();
    throw;
  } catch (const std::exception& error) {
    const std::string text = error.what();
    store->fail(text.substr(0, text.find('\n')));
    failure = store->problem();
    C10_THROW_ERROR(DistBackendError, "dlslime: " + describe(device, failure));
  }
}

std::string Collectives::describe(
    c10::DeviceType device,
    const std::string& why) const {
  const auto& group = *handle_->group;
  return "the first collective of group \"" + group.options().name + "\" (" +
      std::to_string(group.size()) + " ranks) on " + nameOf(device) +
      " tensors: " + why;
}

std::vector<c10::intrusive_ptr<c10d::Backend>> Collectives::made() {
  const std::lock_guard<std::mutex> guard(mutex_);
  std::vector<c10::intrusive_ptr<c10d::Backend>> all;
  for (const auto& [device, backend] : backends_) {
    all.push_back(backend);
  }
  return all;
}

void Collectives::setNames(
    const std::string& uid,
    const std::string& description) {
  const std::lock_guard<std::mutex> guard(mutex_);
  uid_ = uid;
  description_ = description;
  for (const auto& [device, backend] : backends_) {
    backend->setGroupUid(uid);
  }
}

void Collectives::leak() {
  const std::lock_guard<std::mutex> guard(mutex_);
  if (auto gloo = backends_.extract(c10::DeviceType::CPU)) {
    keepForEver(std::make_shared<BackendPtr>(std::move(gloo.mapped())));
  }
}

void Collectives::close() {
  const std::lock_guard<std::mutex> guard(mutex_);
  closed_ = true;
}

} // namespace dlslime
