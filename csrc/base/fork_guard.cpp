#include "base/fork_guard.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <set>

namespace dlslime {

namespace {

std::atomic<bool> forked{false};

// Never destroyed: atfork handlers outlive static destructors.
std::mutex& fdMutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}
std::set<int>& fds() {
  static auto* set = new std::set<int>;
  return *set;
}

// Closes the descriptors in the child of a fork, which may come from any
// thread: uses only close() and memory guarded by the mutex, since the parent
// holds the mutex across the fork.
void inChild() {
  // A grandchild closes nothing: the numbers may belong to new files by then.
  if (!forked.exchange(true, std::memory_order_relaxed)) {
    for (const int fd : fds()) {
      ::close(fd);
    }
  }
  fdMutex().unlock();
}

void installHandlers() {
  static const bool installed = [] {
    pthread_atfork(
        [] { fdMutex().lock(); }, [] { fdMutex().unlock(); }, inChild);
    return true;
  }();
  static_cast<void>(installed);
}

} // namespace

void registerForkFd(int fd) {
  installHandlers();
  const std::lock_guard<std::mutex> guard(fdMutex());
  if (fd >= 0) {
    fds().insert(fd);
  }
}

void unregisterForkFd(int fd) {
  const std::lock_guard<std::mutex> guard(fdMutex());
  fds().erase(fd);
}

bool inForkedChild() noexcept {
  return forked.load(std::memory_order_relaxed);
}

} // namespace dlslime
