#include "engine/listener.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>

#include "core/fork_guard.h"
#include "core/random.h"
#include "core/status.h"
#include "engine/net_address.h"

namespace dlslime {

namespace {

constexpr int kBacklog = 1024;
// Hosts have a handful of addresses that matter; the store keeps them all.
constexpr size_t kMostAddresses = 16;

UniqueFd listenAt(int family, const sockaddr* name, socklen_t size) {
  UniqueFd fd(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd || bind(fd.get(), name, size) != 0 ||
      listen(fd.get(), kBacklog) != 0) {
    throwErrno("cannot listen for connections of peers", errno);
  }
  return fd;
}

// Every address of the host, IPv4 and IPv6, where it has IPv6.
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

std::string portOf(int fd) {
  NetAddress bound;
  bound.size = sizeof(bound.name);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&bound.name), &bound.size) !=
      0) {
    throwErrno("cannot tell the port of a socket", errno);
  }
  const auto text = bound.text();
  return text.substr(text.rfind(':'));
}

} // namespace

Listener::Listener(UniqueFd fd, std::vector<std::string> names)
    : fd_(std::move(fd)), names_(std::move(names)) {
  registerForkFd(fd_.get());
}

Listener::~Listener() {
  if (fd_) {
    unregisterForkFd(fd_.get());
  }
}

Listener Listener::onThisHost() {
  std::string name = "dlslime-" + hex(randomBytes(8));
  const UnixAddress address(name);
  return {listenAt(AF_UNIX, address.get(), address.size()), {std::move(name)}};
}

Listener Listener::onTheNetwork(const std::string& interfaces) {
  auto names = ownAddresses(interfaces);
  if (names.empty()) {
    throw Error(
        ErrorCode::kUnavailable,
        "this host has no network interface that is up" +
            (interfaces.empty()
                 ? std::string()
                 : " and in DLSLIME_SOCKET_IFNAME=" + interfaces));
  }
  names.resize(std::min(names.size(), kMostAddresses));
  UniqueFd fd = listenEverywhere();
  const auto port = portOf(fd.get());
  for (auto& name : names) {
    const bool six = name.find(':') != std::string::npos;
    name = (six ? "[" + name + "]" : name) + port;
  }
  return {std::move(fd), std::move(names)};
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
