#include "engine/bootstrap/listener.h"

#include <netinet/in.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/fork_guard.h"
#include "base/log.h"
#include "base/random.h"
#include "base/status.h"
#include "engine/bootstrap/net_address.h"
#include "engine/bootstrap/rendezvous_directory.h"
#include "engine/bootstrap/unix_address.h"
#include "engine/bootstrap/wire_records.h"

namespace dlslime {

namespace {

constexpr int kBacklog = 1024;
constexpr int kMostDropped = 64; // per call of accept()

UniqueFd listenAt(int family, const sockaddr* name, socklen_t size) {
  UniqueFd fd(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int off = 0;
  if (family == AF_INET6 && fd) { // IPv4 peers, too, despite bindv6only
    setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  }
  if (!fd || bind(fd.get(), name, size) != 0 ||
      listen(fd.get(), kBacklog) != 0) {
    throwErrno("cannot listen for connections of peers", errno);
  }
  return fd;
}

// Listens at every address of the host: IPv4, and IPv6 where the host has IPv6.
UniqueFd listenEverywhere() {
  sockaddr_in6 both{};
  both.sin6_family = AF_INET6;
  sockaddr_in old{};
  old.sin_family = AF_INET;
  try {
    return listenAt(
        AF_INET6, reinterpret_cast<const sockaddr*>(&both), sizeof(both));
  } catch (const Error&) {
    return listenAt(
        AF_INET, reinterpret_cast<const sockaddr*>(&old), sizeof(old));
  }
}

// Returns the local address of a socket, such as "10.9.0.1:4711".
std::string ownText(int fd) {
  NetAddress own;
  own.size = sizeof(own.name);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&own.name), &own.size) != 0) {
    throwErrno("cannot tell the address of a socket", errno);
  }
  return own.text();
}

} // namespace

Listener::Listener(UniqueFd fd, std::vector<std::string> names, bool network)
    : fd_(std::move(fd)),
      names_(std::move(names)),
      network_(network),
      uid_(geteuid()) {
  registerForkFd(fd_.get());
  keepSpare();
}

void Listener::keepSpare() {
  if (!spare_) {
    spare_ = UniqueFd(eventfd(0, EFD_CLOEXEC));
  }
}

std::optional<ControlSocket> Listener::acceptToRefuse() {
  keepSpare();
  spare_.reset();
  auto socket = accept();
  if (!socket) {
    keepSpare();
  }
  return socket;
}

Listener::~Listener() {
  if (!fd_) {
    return; // moved from
  }
  unregisterForkFd(fd_.get());
  if (directory_ && !inForkedChild()) {
    directory_->remove(names_.front());
  }
}

Listener Listener::onThisHost(Dropped dropped, const std::string& prefix) {
  std::string name = prefix + hex(randomBytes(8));
  const UnixAddress address(name);
  Listener made(
      listenAt(AF_UNIX, address.get(), address.size()),
      {std::move(name)},
      false);
  made.dropped_ = std::move(dropped);
  return made;
}

Listener Listener::inDirectory(
    std::shared_ptr<const RendezvousDirectory> directory,
    const std::string& name,
    Dropped dropped) {
  directory->removeStale();
  const auto address = directory->address(name);
  try {
    Listener made(
        listenAt(AF_UNIX, address.get(), address.size()), {name}, false);
    made.dropped_ = std::move(dropped);
    made.directory_ = std::move(directory);
    return made;
  } catch (const Error& error) {
    throw Error(
        ErrorCode::kInvalidArgument,
        directory->setting() + " can't be used: " + error.what());
  }
}

Listener Listener::onTheNetwork(
    const std::string& interfaces,
    const std::string& setting) {
  auto names = requiredAddresses(interfaces, setting);
  names.resize(std::min(names.size(), AddressRecord::kMostAddresses));
  UniqueFd fd = listenEverywhere();
  const auto bound = ownText(fd.get());
  const auto port = bound.substr(bound.rfind(':'));
  for (auto& name : names) {
    if (name.find(':') != std::string::npos) { // IPv6
      name.insert(0, "[").append("]");
    }
    name += port;
  }
  return {std::move(fd), std::move(names), true};
}

// Returns whether a connection may stay. A TCP socket listens at every address
// of the host, so connections to addresses of unselected interfaces are
// refused. A unix socket is for the user that began to listen, and for the user
// that the process has become since.
bool Listener::meant(const ControlSocket& socket) const {
  if (network_) {
    const auto own = ownText(socket.fd());
    return std::find(names_.begin(), names_.end(), own) != names_.end();
  }
  const auto uid = socket.credentials().uid;
  return uid == uid_ || uid == geteuid();
}

std::optional<ControlSocket> Listener::accept() {
  for (int i = 0; i < kMostDropped; ++i) {
    UniqueFd fd(
        accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    // Skips a connection that ended in the queue.
    if (!fd && (errno == ECONNABORTED || errno == EINTR)) {
      continue;
    }
    problem_ = fd || errno == EAGAIN ? 0 : errno;
    if (!fd) {
      return std::nullopt;
    }
    ControlSocket socket(std::move(fd));
    try {
      if (meant(socket)) {
        return socket;
      }
    } catch (const Error& error) { // the kernel tells no address or user
      logDebug(std::string("a connection was dropped: ") + error.what());
      continue;
    }
    if (dropped_) {
      dropped_(socket);
    }
  }
  return std::nullopt;
}

} // namespace dlslime
