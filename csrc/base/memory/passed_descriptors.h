#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>

#include "base/unique_fd.h"

namespace dlslime {

// Descriptors passed over a unix socket between other bytes, for a peer that
// may not copy them by number (fetchDescriptor()): a peer in another container,
// or a seccomp profile without pidfd_getfd. Each has the number of its
// DescriptorProof. Bytes of value 0 mean nothing here: they wake the peer.

// Returns false if the descriptor can't be passed now.
bool passDescriptor(int socket, uint64_t number, int fd);

// Reads such a socket to its end. Whatever else the peer sends is skipped.
class PassedDescriptors {
 public:
  using Take = std::function<void(uint64_t number, UniqueFd fd)>;

  // Reads the bytes that are there, 256 at most, and calls `take` for each
  // descriptor. Returns what recvmsg() returns.
  ssize_t read(int socket, const Take& take);

 private:
  UniqueFd fd_; // came with the number under way
  unsigned expected_ = 0; // bytes of the number still to come
  uint64_t number_ = 0;
};

} // namespace dlslime
