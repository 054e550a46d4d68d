#pragma once

#include "base/library/api.h"
#include "base/unique_fd.h"

namespace dlslime {

// Makes forked children close descriptor `fd` at once; a negative `fd` is
// ignored. Any thread.
//
// A forked child (a DataLoader worker) has none of the engine's threads and
// must not use the engine's connections. Nor may a child keep the sockets open:
// a peer learns of a process's death by the end of a socket, and a child's copy
// would hold back the end.
DLSLIME_API void registerForkFd(int fd);
// Undoes registerForkFd(). Any thread.
DLSLIME_API void unregisterForkFd(int fd);

// Returns true in a child forked after the first registerForkFd().
DLSLIME_API bool inForkedChild() noexcept;

// Owns a descriptor closed in forked children.
class UnforkedFd {
 public:
  explicit UnforkedFd(UniqueFd fd) : fd_(std::move(fd)) {
    registerForkFd(fd_.get());
  }
  ~UnforkedFd() {
    unregisterForkFd(fd_.get());
    if (inForkedChild() && !ofChild_) {
      static_cast<void>(
          fd_.release()); // closed in the child; the number may be a new file's
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
