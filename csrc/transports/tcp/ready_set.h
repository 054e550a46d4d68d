#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>

#include "base/clock.h"
#include "base/fork_guard.h"

namespace dlslime::tcp {

// Which sockets have news, so that a look at many quiet connections costs one
// system call and not one for each. Any thread.
class ReadySet {
 public:
  ReadySet();

  // Whether a socket may be read or written since its owner has last set it to
  // false: then that is tried until it would block.
  using News = std::shared_ptr<std::atomic<bool>>;
  News add(int fd); // throws Error
  void remove(int fd);
  // Asks the kernel, but where that was just done.
  void look();
  void lookNow();
  // Makes fd() readable.
  void wake();
  // Between these two a thread looks for the last time, and sleeps on fd().
  // What any look takes meanwhile makes it readable: that thread may not see
  // it.
  void beginSleep();
  void endSleep();

  // Readable while there may be news that look() has not told.
  int fd() const {
    return epoll_.get();
  }

 private:
  const UnforkedFd epoll_;
  const UnforkedFd event_; // of wake()
  std::mutex mutex_;
  // Guarded by mutex_:
  std::map<int, News> news_;
  bool asleep_ = false;
  std::atomic<TimePoint::rep> looked_{0};
};

} // namespace dlslime::tcp
