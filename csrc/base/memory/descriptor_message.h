#pragma once

#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <span>

#include "base/unique_fd.h"

namespace dlslime {

// Bytes for a unix socket with descriptors beside the bytes. send() and
// receive() never wait, and return what sendmsg() and recvmsg() return.
class DescriptorMessage {
 public:
  static constexpr size_t kMost = 4; // descriptors of a message

  // The bytes must outlive the message.
  DescriptorMessage(void* bytes, size_t size);
  // The header points into the object.
  DescriptorMessage(const DescriptorMessage&) = delete;
  DescriptorMessage& operator=(const DescriptorMessage&) = delete;

  // Adds a descriptor to send, kMost at most. The caller keeps it open until
  // send() returns.
  void add(int fd);
  ssize_t send(int socket);
  // Receives bytes and at most `most` descriptors (kMost at most); the kernel
  // closes further ones, and cut() tells so.
  ssize_t receive(int socket, size_t most);
  bool cut() const {
    return (header_.msg_flags & MSG_CTRUNC) != 0;
  }
  // Descriptors that were received, close-on-exec.
  std::span<UniqueFd> received() {
    return {received_.data(), count_};
  }

 private:
  iovec part_;
  msghdr header_{};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kMost)> control_{};
  size_t count_ = 0; // of the descriptors added or received
  std::array<UniqueFd, kMost> received_;
};

} // namespace dlslime
