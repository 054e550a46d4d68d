#pragma once

#include "base/unique_fd.h"

namespace dlslime {

// Forking a process that holds an engine (DataLoader workers) copies neither
// its threads nor its right to the connections. A child must not use them,
// and must not keep their sockets open either: a peer learns of our death by
// the socket's end, which would not come while a child holds a copy.
//
// registerForkFd: the child closes this descriptor at once, unless it is none
// (negative). Threads: any.
void registerForkFd(int fd);
void unregisterForkFd(int fd);

// True in a child that was forked while this library was loaded.
bool inForkedChild() noexcept;

// Owns a descriptor that forked children close.
class UnforkedFd {
 public:
  explicit UnforkedFd(UniqueFd fd) : fd_(std::move(fd)) {
    registerForkFd(fd_.get());
  }
  ~UnforkedFd() {
    unregisterForkFd(fd_.get());
    if (inForkedChild() && !ofChild_) {
      static_cast<void>(fd_.release()); // closed, and maybe another file's now
    }
  }
  UnforkedFd(const UnforkedFd&) = delete;
  UnforkedFd& operator=(const UnforkedFd&) = delete;
  int get() const {
    return fd_.get();
  }

 private:
  UniqueFd fd_;
  const bool ofChild_ = inForkedChild();
};

} // namespace dlslime
