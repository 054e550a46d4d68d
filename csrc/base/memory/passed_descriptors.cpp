#include "base/memory/passed_descriptors.h"

#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <utility>

namespace dlslime {

namespace {

constexpr std::byte kMark{1}; // begins a number
// Several descriptors never come with one read: the kernel ends a read behind
// bytes that carry descriptors.
constexpr size_t kMostFds = 4;

UniqueFd takeFirst(msghdr& message) {
  UniqueFd first;
  for (auto* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) {
      continue;
    }
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int number = -1;
      std::memcpy(&number, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      UniqueFd fd(number);
      if (!first) {
        first = std::move(fd);
      }
    }
  }
  return first;
}

} // namespace

bool passDescriptor(int socket, uint64_t number, int fd) {
  std::array<std::byte, 1 + sizeof(number)> bytes{kMark};
  std::memcpy(bytes.data() + 1, &number, sizeof(number));
  iovec part{bytes.data(), bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  auto* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &fd, sizeof(int));
  return sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) ==
      static_cast<ssize_t>(bytes.size());
}

ssize_t PassedDescriptors::read(int socket, const Take& take) {
  std::array<std::byte, 256> bytes{};
  iovec part{bytes.data(), bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kMostFds)>
      control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const auto got = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got <= 0) {
    return got;
  }
  if (auto fd = takeFirst(message)) {
    fd_ = std::move(fd);
  }
  for (ssize_t i = 0; i < got; ++i) {
    const auto byte = bytes.at(static_cast<size_t>(i));
    if (expected_ == 0) {
      expected_ = byte == kMark ? sizeof(number_) : 0;
      continue;
    }
    const auto place = 8 * (sizeof(number_) - expected_);
    number_ |= std::to_integer<uint64_t>(byte) << place;
    if (--expected_ == 0) {
      const auto number = std::exchange(number_, 0);
      if (fd_) {
        take(number, std::exchange(fd_, UniqueFd()));
      }
    }
  }
  if (expected_ == 0) { // a descriptor without a number
    fd_.reset();
  }
  return got;
}

} // namespace dlslime
