#include "base/memory/descriptor_message.h"

#include <algorithm>
#include <cstring>

namespace dlslime {

DescriptorMessage::DescriptorMessage(void* bytes, size_t size)
    : part_{bytes, size} {
  header_.msg_iov = &part_;
  header_.msg_iovlen = 1;
}

void DescriptorMessage::add(int fd) {
  header_.msg_control = control_.data();
  header_.msg_controllen = CMSG_SPACE(sizeof(int) * (count_ + 1));
  auto* const control = CMSG_FIRSTHDR(&header_);
  control->cmsg_level = SOL_SOCKET;
  control->cmsg_type = SCM_RIGHTS;
  control->cmsg_len = CMSG_LEN(sizeof(int) * (count_ + 1));
  std::memcpy(CMSG_DATA(control) + count_ * sizeof(int), &fd, sizeof(int));
  ++count_;
}

ssize_t DescriptorMessage::send(int socket) {
  return sendmsg(socket, &header_, MSG_DONTWAIT | MSG_NOSIGNAL);
}

ssize_t DescriptorMessage::receive(int socket, size_t most) {
  header_.msg_control = control_.data();
  header_.msg_controllen = CMSG_LEN(sizeof(int) * std::min(most, kMost));
  const auto got = recvmsg(socket, &header_, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0) {
    return got;
  }
  for (auto* control = CMSG_FIRSTHDR(&header_); control != nullptr;
       control = CMSG_NXTHDR(&header_, control)) {
    if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS) {
      continue;
    }
    const size_t count = (control->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(control) + i * sizeof(int), sizeof(int));
      received_.at(count_) = UniqueFd(fd);
      ++count_;
    }
  }
  return got;
}

} // namespace dlslime
