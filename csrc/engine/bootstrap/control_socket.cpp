#include "engine/bootstrap/control_socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <iterator>

#include "base/bytes.h"
#include "base/fork_guard.h"
#include "base/memory/descriptor_message.h"
#include "base/status.h"
#include "engine/bootstrap/net_address.h"
#include "engine/bootstrap/rendezvous_directory.h"
#include "engine/bootstrap/unix_address.h"
#include "engine/bootstrap/wire_records.h"

namespace dlslime {

namespace {

static_assert(kMostDescriptors <= DescriptorMessage::kMost);

// TCP's keep-alive detects hosts without power or cable: after 10 s of silence,
// three probes go out, five seconds apart.
constexpr int kKeepIdleSeconds = 10;
constexpr int kKeepIntervalSeconds = 5;
constexpr int kKeepProbes = 3;
constexpr int kUserTimeoutMs = 25000; // limit for unacknowledged bytes
// TCP's user timeout for side sockets: longer, because the timeout also runs
// while a live peer takes no bytes, such as a stopped process.
constexpr int kSideTimeoutMs = 120000;

UniqueFd makeSocket(int family) {
  UniqueFd fd(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) {
    throwErrno("cannot create a socket", errno);
  }
  return fd;
}

// Sets a socket option and ignores failure: without the option the socket
// works, too, until the network fails.
void trySetting(int fd, int level, int option, int value) {
  [[maybe_unused]] const int error =
      setsockopt(fd, level, option, &value, sizeof(value));
}

bool isUnix(int fd) {
  int domain = 0;
  socklen_t size = sizeof(domain);
  return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 &&
      domain == AF_UNIX;
}

// Tells a refusal by the peer's host from a full queue and from silence.
ErrorCode connectCode(int error) {
  switch (error) {
    case ECONNREFUSED:
    case ENOENT: // removed from the rendezvous directory at the process's end
      return ErrorCode::kPeerFailed;
    case EACCES: // the socket is of another user
      return ErrorCode::kUnavailable;
    case EAGAIN: // a listener with a full queue
      return ErrorCode::kExhausted;
    default:
      return ErrorCode::kTimeout;
  }
}

} // namespace

ControlSocket::ControlSocket(UniqueFd fd) : fd_(std::move(fd)) {
  registerForkFd(fd_.get());
  if (!isUnix(fd_.get())) {
    trySetting(fd_.get(), IPPROTO_TCP, TCP_NODELAY, 1);
    trySetting(fd_.get(), SOL_SOCKET, SO_KEEPALIVE, 1);
    trySetting(fd_.get(), IPPROTO_TCP, TCP_KEEPIDLE, kKeepIdleSeconds);
    trySetting(fd_.get(), IPPROTO_TCP, TCP_KEEPINTVL, kKeepIntervalSeconds);
    trySetting(fd_.get(), IPPROTO_TCP, TCP_KEEPCNT, kKeepProbes);
    trySetting(fd_.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, kUserTimeoutMs);
  }
}

ControlSocket& ControlSocket::operator=(ControlSocket&& other) noexcept {
  if (fd_) {
    unregisterForkFd(fd_.get());
  }
  fd_ = std::move(other.fd_);
  heard_ = other.heard_;
  received_ = std::move(other.received_);
  return *this;
}

ControlSocket::~ControlSocket() {
  if (fd_) {
    unregisterForkFd(fd_.get());
  }
}

SideSocket ControlSocket::release() {
  if (fd_) {
    unregisterForkFd(fd_.get());
    if (!isUnix(fd_.get())) { // the control socket detects a dead host
      trySetting(fd_.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, kSideTimeoutMs);
    }
  }
  return {std::move(fd_), std::move(received_)};
}

namespace {
ControlSocket connectUnix(
    const UnixAddress& address,
    const std::string& where) {
  ControlSocket made(makeSocket(AF_UNIX));
  if (connect(made.fd(), address.get(), address.size()) != 0) {
    const int error = errno;
    throw Error(
        connectCode(error),
        "no process answers on the peer's socket" + where + ": " +
            errnoText(error));
  }
  return made;
}
} // namespace

ControlSocket ControlSocket::connectTo(const std::string& abstractName) {
  return connectUnix(UnixAddress(abstractName), "");
}

ControlSocket ControlSocket::connectIn(
    const RendezvousDirectory& directory,
    const std::string& name) {
  return connectUnix(directory.address(name), " in " + directory.setting());
}

uint32_t ControlSocket::requireUser(uint32_t own) const {
  const auto other = credentials();
  if (other.uid != own && other.uid != geteuid()) {
    throw Error(
        ErrorCode::kPeerFailed,
        "the peer's socket belongs to a process of uid " +
            std::to_string(other.uid) + ", and this process is of uid " +
            std::to_string(own) + ": no handshake is begun");
  }
  return other.pid;
}

ControlSocket ControlSocket::startConnecting(const std::string& address) {
  const auto to = NetAddress::parse(address);
  ControlSocket made(makeSocket(to.name.ss_family));
  if (connect(
          made.fd(), reinterpret_cast<const sockaddr*>(&to.name), to.size) !=
          0 &&
      errno != EINPROGRESS) {
    throw Error(connectCode(errno), errnoText(errno));
  }
  return made;
}

void ControlSocket::finishConnecting() {
  int error = 0;
  socklen_t size = sizeof(error);
  getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) {
    throw Error(connectCode(error), errnoText(error));
  }
}

ControlSocket::Credentials ControlSocket::credentials() const {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (getsockopt(fd_.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    throwErrno(
        "cannot get the pid and uid of the process at the other end of a "
        "socket",
        errno);
  }
  return {static_cast<uint32_t>(peer.pid), static_cast<uint32_t>(peer.uid)};
}

bool ControlSocket::ended() const {
  std::byte next{};
  const auto got = recv(fd_.get(), &next, 1, MSG_PEEK | MSG_DONTWAIT);
  return got == 0 ||
      (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

bool ControlSocket::local() const {
  return isUnix(fd_.get());
}

std::string ControlSocket::peerText() const {
  if (local()) {
    const auto peer = credentials();
    return "process " + std::to_string(peer.pid) + " of uid " +
        std::to_string(peer.uid);
  }
  NetAddress peer;
  peer.size = sizeof(peer.name);
  const int error = getpeername(
      fd_.get(), reinterpret_cast<sockaddr*>(&peer.name), &peer.size);
  return error == 0 ? peer.text() : "a process that is gone";
}

std::string ControlSocket::peerSource() const {
  if (local()) {
    return "uid " + std::to_string(credentials().uid);
  }
  const auto text = peerText();
  return text.substr(0, text.rfind(':'));
}

std::string ControlSocket::peerOrigin() const {
  return local() ? peerText() : peerSource();
}

namespace {

void requireSent(ssize_t sent, size_t size) {
  if (sent != static_cast<ssize_t>(size)) {
    throw Error(
        ErrorCode::kPeerFailed,
        "the handshake could not be sent: " +
            errnoText(sent < 0 ? errno : EMSGSIZE));
  }
}

// Returns false when no bytes have come yet. Throws Error when the stream has
// ended or failed.
bool received(ssize_t got) {
  if (got == 0) {
    throw Error(
        ErrorCode::kPeerFailed, "the peer closed the socket in the handshake");
  }
  if (got < 0 && errno != EAGAIN && errno != EINTR) {
    throw Error(
        ErrorCode::kPeerFailed,
        "the handshake could not be read: " + errnoText(errno));
  }
  return got > 0;
}

} // namespace

void ControlSocket::sendFrame(ByteSpan bytes) {
  ByteWriter writer;
  writer.blob(bytes);
  const Bytes frame = writer.take();
  requireSent(
      ::send(fd_.get(), frame.data(), frame.size(), MSG_NOSIGNAL),
      frame.size());
}

void ControlSocket::sendDescriptors(const std::vector<UniqueFd>& fds) {
  std::byte carrier{}; // descriptors travel only beside a byte
  DescriptorMessage message(&carrier, 1);
  for (const auto& fd : fds) {
    message.add(fd.get());
  }
  requireSent(message.send(fd_.get()), 1);
}

// Returns whether `size` bytes of the frame, with the length before the frame,
// have come.
bool ControlSocket::receiveUpTo(size_t size) {
  while (received_.size() < size) {
    std::array<std::byte, 4096> buffer{};
    iovec part{buffer.data(), std::min(buffer.size(), size - received_.size())};
    msghdr message{}; // no room for descriptors: the kernel drops any
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    const auto got = recvmsg(fd_.get(), &message, MSG_DONTWAIT);
    if (!received(got)) {
      return false;
    }
    if ((message.msg_flags & MSG_CTRUNC) != 0) {
      throw Error(
          ErrorCode::kPeerFailed,
          "the peer sends descriptors where the handshake has none");
    }
    heard_ = true;
    received_.insert(received_.end(), buffer.begin(), buffer.begin() + got);
  }
  return true;
}

std::optional<Bytes> ControlSocket::receiveFrame(size_t most) {
  if (!receiveUpTo(sizeof(uint32_t))) {
    return std::nullopt;
  }
  const auto size = ByteReader(received_).number<uint32_t>();
  if (size > most) {
    throw Error(
        ErrorCode::kPeerFailed,
        "a handshake frame of " + std::to_string(size) +
            " bytes is refused: at most " + std::to_string(most) +
            " may come now");
  }
  if (!receiveUpTo(sizeof(uint32_t) + size)) {
    return std::nullopt;
  }
  Bytes frame(received_.begin() + sizeof(uint32_t), received_.end());
  received_.clear();
  return frame;
}

std::optional<std::vector<UniqueFd>> ControlSocket::receiveDescriptors(
    size_t count) {
  std::byte carrier{};
  DescriptorMessage message(&carrier, 1);
  if (!received(message.receive(fd_.get(), count))) {
    return std::nullopt;
  }
  const auto came = message.received();
  std::vector<UniqueFd> fds(
      std::move_iterator(came.begin()), std::move_iterator(came.end()));
  const bool cut = message.cut();
  if (cut && fds.size() < count) {
    throw Error(ErrorCode::kExhausted, noDescriptorText());
  }
  if (cut || fds.size() != count) {
    throw Error(
        ErrorCode::kPeerFailed,
        std::to_string(fds.size()) + (cut ? " or more" : "") +
            " descriptors came in the handshake, and " + std::to_string(count) +
            " were announced");
  }
  return fds;
}

} // namespace dlslime
