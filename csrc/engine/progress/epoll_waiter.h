#pragma once

#include <sys/epoll.h>

#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "base/unique_fd.h"

namespace dlslime {

// The descriptors able to wake a sleeping process, in one epoll set. add(),
// remove() and kick() may be called while a thread is in wait().
class EpollWaiter {
 public:
  EpollWaiter(); // throws Error

  void add(int fd, uint64_t token); // throws Error
  void remove(int fd);
  // Wakes a single wait(), under way or to come: a kick lasts until a wait()
  // has returned.
  void kick();
  // Returns the tokens of readable or hung-up descriptors; none if only the
  // deadline or a kick ended the wait.
  const std::vector<uint64_t>& wait(TimePoint deadline);

 private:
  UniqueFd epoll_;
  UniqueFd kick_;
  std::vector<uint64_t> ready_; // used only by the thread in wait()
};

} // namespace dlslime
