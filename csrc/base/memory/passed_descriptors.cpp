#include "base/memory/passed_descriptors.h"

#include <array>
#include <cstddef>
#include <cstring>
#include <utility>

#include "base/memory/descriptor_message.h"

namespace dlslime {

namespace {

constexpr std::byte kMark{1}; // begins a number

} // namespace

bool passDescriptor(int socket, uint64_t number, int fd) {
  std::array<std::byte, 1 + sizeof(number)> bytes{kMark};
  std::memcpy(bytes.data() + 1, &number, sizeof(number));
  DescriptorMessage message(bytes.data(), bytes.size());
  message.add(fd);
  return message.send(socket) == static_cast<ssize_t>(bytes.size());
}

ssize_t PassedDescriptors::read(int socket, const Take& take) {
  std::array<std::byte, 256> bytes{};
  DescriptorMessage message(bytes.data(), bytes.size());
  const auto got = message.receive(socket, DescriptorMessage::kMost);
  if (got <= 0) {
    return got;
  }
  // Descriptors of two messages never come with one read: the kernel ends a
  // read behind bytes that carry descriptors.
  if (const auto came = message.received(); !came.empty()) {
    fd_ = std::move(came.front());
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
