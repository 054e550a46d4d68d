#pragma once

#include <atomic>
#include <map>
#include <memory>

#include "base/clock.h"
#include "base/fork_guard.h"
#include "base/threads/mutex.h"

namespace dlslime::tcp {

// Tells which sockets have news, so that looking at many quiet connections
// costs a single system call instead of a call for each. Any thread may call.
class ReadySet {
 public:
  ReadySet();

  // True if the socket may have become readable or writable since its owner
  // last set the flag to false. The owner then reads and writes until the
  // socket would block.
  using News = std::shared_ptr<std::atomic<bool>>;
  News add(int fd); // throws Error
  void remove(int fd);
  // Asks the kernel for news, unless the last look was microseconds ago.
  void look();
  void lookNow();
  // Makes fd() readable.
  void wake();
  // A thread sleeps on fd() between beginSleep() and endSleep(). News taken by
  // any look in between makes fd() readable, since the sleeping thread may have
  // missed the flag.
  void beginSleep();
  void endSleep();

  // Descriptor to sleep on: readable while look() may find news.
  int fd() const {
    return epoll_.get();
  }

 private:
  const UnforkedFd epoll_;
  const UnforkedFd event_; // written by wake()
  Mutex mutex_;
  std::map<int, News> news_ GUARDED_BY(mutex_);
  bool asleep_ GUARDED_BY(mutex_) = false;
  std::atomic<TimePoint::rep> looked_{0};
};

} // namespace dlslime::tcp
