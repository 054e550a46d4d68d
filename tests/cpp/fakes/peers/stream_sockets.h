#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <string>

#include "base/unique_fd.h"
#include "interface/memory.h"
#include "interface/message.h"

namespace dlslime::testing {

// Limits the buffers to about so many bytes; 0 keeps the system's choice.
using SocketEnds = std::array<UniqueFd, 2>;

inline void limitBuffers(int fd, int buffer) {
  if (buffer > 0) {
    for (const int option : {SO_SNDBUF, SO_RCVBUF}) {
      EXPECT_EQ(setsockopt(fd, SOL_SOCKET, option, &buffer, sizeof(buffer)), 0);
    }
  }
}

// Returns two connected sockets that do not block; `buffer`: limitBuffers().
inline SocketEnds unixEnds(int buffer = 0) {
  int fds[2] = {-1, -1};
  EXPECT_EQ(
      socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds),
      0);
  for (const int fd : fds) {
    limitBuffers(fd, buffer);
  }
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

inline SocketEnds tcpEnds(int buffer = 0) {
  const UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  UniqueFd first(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  limitBuffers(listener.get(), buffer); // inherited by accepted sockets
  limitBuffers(first.get(), buffer);
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(name);
  auto* const address = reinterpret_cast<sockaddr*>(&name);
  EXPECT_EQ(bind(listener.get(), address, size), 0);
  EXPECT_EQ(listen(listener.get(), 1), 0);
  EXPECT_EQ(getsockname(listener.get(), address, &size), 0);
  EXPECT_EQ(::connect(first.get(), address, size), 0);
  UniqueFd second(
      accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  EXPECT_EQ(fcntl(first.get(), F_SETFL, O_NONBLOCK), 0);
  const int on = 1;
  for (const int fd : {first.get(), second.get()}) {
    EXPECT_EQ(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)), 0);
  }
  return {std::move(first), std::move(second)};
}

// Makes closing the socket reset the connection.
inline void resetAtClose(int fd) {
  const linger none{1, 0};
  EXPECT_EQ(setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof(none)), 0);
}

// Writes without a FrameStream; returns the number of bytes gone out.
inline size_t writeRaw(int fd, ByteSpan bytes) {
  const auto put =
      send(fd, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  return put > 0 ? static_cast<size_t>(put) : 0;
}
inline Bytes readRaw(int fd, size_t most = 1 << 20) {
  Bytes bytes(most);
  const auto got = recv(fd, bytes.data(), most, MSG_DONTWAIT);
  bytes.resize(got > 0 ? static_cast<size_t>(got) : 0);
  return bytes;
}
// Returns true once the peer has closed the socket and all bytes were read.
inline bool isOver(int fd) {
  std::byte one{};
  return recv(fd, &one, 1, MSG_DONTWAIT | MSG_PEEK) == 0;
}

inline MessageHeader headerOf(uint64_t sequence, size_t payload = 0) {
  MessageHeader made;
  made.type = MessageType::kEager;
  made.sequence = sequence;
  made.payloadSize = static_cast<uint32_t>(payload);
  return made;
}
// Returns a whole frame, as sent over the socket.
inline Bytes frameOf(const MessageHeader& header, ByteSpan payload) {
  const auto head = std::as_bytes(std::span(&header, 1));
  Bytes frame(head.begin(), head.end());
  frame.insert(frame.end(), payload.begin(), payload.end());
  return frame;
}

} // namespace dlslime::testing
