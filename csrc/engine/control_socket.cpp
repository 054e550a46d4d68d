#include "engine/control_socket.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "core/bytes.h"
#include "core/fork_guard.h"
#include "core/random.h"
#include "core/status.h"

namespace dlslime {

namespace {

constexpr uint32_t kMostFrameBytes = 64 * 1024;
constexpr size_t kMostFds = 8;
constexpr int kBacklog = 1024;

struct Address {
  sockaddr_un name{};
  socklen_t size = 0;
};

Address abstractAddress(const std::string& name) {
  Address address;
  address.name.sun_family = AF_UNIX;
  if (name.size() + 1 > sizeof(address.name.sun_path)) {
    throw Error(ErrorCode::kPeerFailed, "the peer's socket name is too long");
  }
  std::memcpy(address.name.sun_path + 1, name.data(), name.size());
  address.size =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

UniqueFd makeSocket() {
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) {
    throwErrno("cannot create a unix socket", errno);
  }
  return fd;
}

} // namespace

ControlSocket::ControlSocket(UniqueFd fd) : fd_(std::move(fd)) {
  registerForkFd(fd_.get());
}

ControlSocket& ControlSocket::operator=(ControlSocket&& other) noexcept {
  if (fd_) {
    unregisterForkFd(fd_.get());
  }
  fd_ = std::move(other.fd_);
  received_ = std::move(other.received_);
  receivedFds_ = std::move(other.receivedFds_);
  return *this;
}

ControlSocket::~ControlSocket() {
  if (fd_) {
    unregisterForkFd(fd_.get());
  }
}

ControlSocket ControlSocket::connectTo(const std::string& abstractName) {
  UniqueFd fd = makeSocket();
  const auto address = abstractAddress(abstractName);
  if (connect(
          fd.get(),
          reinterpret_cast<const sockaddr*>(&address.name),
          address.size) != 0) {
    throw Error(
        ErrorCode::kPeerFailed,
        "nobody answers on its socket: " + errnoText(errno));
  }
  return ControlSocket(std::move(fd));
}

ControlSocket::Credentials ControlSocket::credentials() const {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (getsockopt(fd_.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    throwErrno("cannot tell who is at the other end of a socket", errno);
  }
  return {static_cast<uint32_t>(peer.pid), static_cast<uint32_t>(peer.uid)};
}

void ControlSocket::sendFrame(
    ByteSpan bytes,
    const std::vector<UniqueFd>& fds) {
  ByteWriter writer;
  writer.blob(bytes);
  const Bytes frame = writer.take();
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kMostFds)>
      control{};
  iovec part{const_cast<std::byte*>(frame.data()), frame.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
    for (size_t i = 0; i < fds.size(); ++i) {
      const int fd = fds[i].get();
      std::memcpy(CMSG_DATA(header) + i * sizeof(int), &fd, sizeof(int));
    }
  }
  const auto sent = sendmsg(fd_.get(), &message, MSG_NOSIGNAL);
  if (sent != static_cast<ssize_t>(frame.size())) {
    throw Error(
        ErrorCode::kPeerFailed,
        "the handshake could not be sent: " +
            errnoText(sent < 0 ? errno : EMSGSIZE));
  }
}

void ControlSocket::receiveSome() {
  std::array<std::byte, 4096> buffer{};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kMostFds)>
      control{};
  iovec part{buffer.data(), buffer.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const auto got = recvmsg(fd_.get(), &message, MSG_CMSG_CLOEXEC);
  for (auto* header = CMSG_FIRSTHDR(&message); got > 0 && header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_type != SCM_RIGHTS) {
      continue;
    }
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      receivedFds_.emplace_back(fd);
    }
  }
  if (got == 0) {
    throw Error(
        ErrorCode::kPeerFailed, "the peer closed the socket in the handshake");
  }
  if (got < 0 && errno != EAGAIN && errno != EINTR) {
    throw Error(
        ErrorCode::kPeerFailed,
        "the handshake could not be read: " + errnoText(errno));
  }
  if (got > 0) {
    received_.insert(received_.end(), buffer.begin(), buffer.begin() + got);
  }
}

std::optional<ControlSocket::Frame> ControlSocket::receiveFrame() {
  receiveSome();
  if (received_.size() < sizeof(uint32_t)) {
    return std::nullopt;
  }
  const auto size = ByteReader(received_).number<uint32_t>();
  if (size > kMostFrameBytes || receivedFds_.size() > kMostFds) {
    throw Error(
        ErrorCode::kPeerFailed,
        "a handshake frame of " + std::to_string(size) + " bytes with " +
            std::to_string(receivedFds_.size()) + " descriptors is refused");
  }
  if (received_.size() < sizeof(uint32_t) + size) {
    return std::nullopt;
  }
  Frame frame;
  const auto begin = received_.begin() + sizeof(uint32_t);
  frame.bytes.assign(begin, begin + size);
  received_.erase(received_.begin(), begin + size);
  frame.fds = std::move(receivedFds_);
  receivedFds_.clear();
  return frame;
}

Listener::Listener() : name_("dlslime-" + hex(randomBytes(8))) {
  fd_ = makeSocket();
  const auto address = abstractAddress(name_);
  if (bind(
          fd_.get(),
          reinterpret_cast<const sockaddr*>(&address.name),
          address.size) != 0 ||
      listen(fd_.get(), kBacklog) != 0) {
    throwErrno("cannot listen on a unix socket", errno);
  }
  registerForkFd(fd_.get());
}

Listener::~Listener() {
  unregisterForkFd(fd_.get());
}

std::optional<ControlSocket> Listener::accept() {
  UniqueFd fd(
      accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd) {
    return std::nullopt;
  }
  return ControlSocket(std::move(fd));
}

} // namespace dlslime
