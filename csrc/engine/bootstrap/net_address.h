#pragma once

#include <sys/socket.h>

#include <string>
#include <vector>

namespace dlslime {

// An IP address with a port, as address records spell it: "10.9.0.1:4711",
// "[2001:db8::1]:4711".
struct NetAddress {
  sockaddr_storage name{};
  socklen_t size = 0;

  // Throws Error{kPeerFailed}: it comes from another process.
  static NetAddress parse(const std::string& text);
  std::string text() const;
};

// The host's IP addresses that peers may reach it by, IPv4 first, without a
// port: of the interfaces that are up and that `wanted` selects, in the syntax
// of NCCL_SOCKET_IFNAME: prefixes of names ("eth,ib"), whole names ("=eth0"),
// or what to leave out ("^docker", "^=virbr0"). Empty: all but the loopback
// and Docker's, or these where there is nothing else.
std::vector<std::string> ownAddresses(const std::string& wanted);
// The same; throws Error{kUnavailable}: there are none. `setting` names the
// variable that says which ones, for the text.
std::vector<std::string> requiredAddresses(
    const std::string& wanted,
    const std::string& setting);

bool selectsInterface(const std::string& wanted, const std::string& name);

} // namespace dlslime
