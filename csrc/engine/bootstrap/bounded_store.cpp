#include "engine/bootstrap/bounded_store.h"

#include <exception>
#include <functional>
#include <system_error>
#include <thread>

#include "base/status.h"
#include "base/threads/mutex.h"

namespace dlslime {

namespace {

struct Answer {
  Mutex mutex;
  Condition changed;
  bool over GUARDED_BY(mutex) = false;
  uint64_t value GUARDED_BY(mutex) = 0;
  std::exception_ptr error GUARDED_BY(mutex);
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
  const MutexLock lock(answer.mutex);
  answer.value = value;
  answer.error = error;
  answer.over = true;
  answer.changed.notifyAll();
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
  MutexLock lock(answer->mutex);
  while (!answer->over && answer->changed.waitUntil(lock, deadline)) {
  }
  if (!answer->over) {
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
