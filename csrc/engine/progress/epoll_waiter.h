#pragma once

#include <sys/epoll.h>

#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "base/unique_fd.h"

namespace dlslime {

// The descriptors that can wake a sleeping process, in one epoll set. add()
// and remove() may be called while another thread sleeps.
class EpollWaiter {
 public:
  EpollWaiter(); // throws Error

  void add(int fd, uint64_t token); // throws Error
  void remove(int fd);
  // Wakes one wait(); sticky until some wait() has returned.
  void kick();
  // Tokens of descriptors that are readable or hung up; empty on time-out or
  // kick.
  const std::vector<uint64_t>& wait(TimePoint deadline);

 private:
  UniqueFd epoll_;
  UniqueFd kick_;
  std::vector<uint64_t> ready_; // of the one thread that is in wait()
};

} // namespace dlslime
