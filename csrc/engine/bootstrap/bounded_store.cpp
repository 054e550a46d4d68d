#include "engine/bootstrap/bounded_store.h"

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <system_error>
#include <thread>

#include "base/status.h"

namespace dlslime {

namespace {

struct Answer {
  std::mutex mutex;
  std::condition_variable changed;
  // `mutex` guards the members below.
  bool over = false;
  uint64_t value = 0;
  std::exception_ptr error;
};

using Call = std::function<uint64_t(Rendezvous& store)>;

void run(Rendezvous& store, const Call& call, Answer& answer) {
  uint64_t value = 0;
  std::exception_ptr error;
  try {
    value = call(store);
  } catch (...) {
    error = std::current_exception();
  }
  const std::lock_guard<std::mutex> guard(answer.mutex);
  answer.value = value;
  answer.error = error;
  answer.over = true;
  answer.changed.notify_all();
}

uint64_t callWithin(
    const std::shared_ptr<Rendezvous>& store,
    TimePoint deadline,
    const std::string& what,
    Call call) {
  if (!store->blocks()) {
    return call(*store);
  }
  const auto answer = std::make_shared<Answer>();
  const auto since = Clock::now();
  try {
    std::thread([store, call = std::move(call), answer] {
      run(*store, call, *answer);
    }).detach();
  } catch (const std::system_error& error) {
    throw Error(statusOf(error));
  }
  std::unique_lock<std::mutex> lock(answer->mutex);
  if (!answer->changed.wait_until(
          lock, deadline, [&] { return answer->over; })) {
    const auto waited = Clock::now() - since;
    throw Error(
        ErrorCode::kTimeout,
        "the group's store has not answered for " +
            std::to_string(waited / milliseconds(1)) + " ms (" + what +
            "): check that the store's process lives, and that the disk of a "
            "FileStore is not full");
  }
  if (answer->error) {
    std::rethrow_exception(answer->error);
  }
  return answer->value;
}

} // namespace

uint64_t BoundedStore::increment(const std::string& key) const {
  return callWithin(store_, deadline_, "add", [key](Rendezvous& store) {
    return store.increment(key);
  });
}

void BoundedStore::set(const std::string& key, const Bytes& value) const {
  callWithin(
      store_, deadline_, "set", [key, value](Rendezvous& store) -> uint64_t {
        store.set(key, value);
        return 0;
      });
}

} // namespace dlslime
