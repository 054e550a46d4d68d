#include "base/fork_guard.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <set>

#include "base/threads/mutex.h"

namespace dlslime {

namespace {

std::atomic<bool> forked{false};

struct Descriptors {
  Mutex mutex;
  std::set<int> open GUARDED_BY(mutex);
};

Descriptors& descriptors() {
  // Never destroyed: atfork handlers outlive static destructors.
  static auto* const all = new Descriptors;
  return *all;
}

void beforeFork() ACQUIRE(descriptors().mutex) {
  descriptors().mutex.lock();
}

void inParent() RELEASE(descriptors().mutex) {
  descriptors().mutex.unlock();
}

// Closes the descriptors in the child of a fork, which may come from any
// thread: uses only close() and memory guarded by the mutex, since the parent
// holds the mutex across the fork.
void inChild() RELEASE(descriptors().mutex) {
  // A grandchild closes nothing: the numbers may belong to new files by then.
  if (!forked.exchange(true, std::memory_order_relaxed)) {
    for (const int fd : descriptors().open) {
      ::close(fd);
    }
  }
  descriptors().mutex.unlock();
}

void installHandlers() {
  static const bool installed = [] {
    pthread_atfork(beforeFork, inParent, inChild);
    return true;
  }();
  static_cast<void>(installed);
}

} // namespace

void registerForkFd(int fd) {
  installHandlers();
  const MutexLock lock(descriptors().mutex);
  if (fd >= 0) {
    descriptors().open.insert(fd);
  }
}

void unregisterForkFd(int fd) {
  const MutexLock lock(descriptors().mutex);
  descriptors().open.erase(fd);
}

bool inForkedChild() noexcept {
  return forked.load(std::memory_order_relaxed);
}

} // namespace dlslime
