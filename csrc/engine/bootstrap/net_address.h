#pragma once

#include <sys/socket.h>

#include <string>
#include <vector>

namespace dlslime {

// IP address with a port, spelled in address records as "10.9.0.1:4711" or
// "[2001:db8::1]:4711".
struct NetAddress {
  sockaddr_storage name{};
  socklen_t size = 0;

  // Throws Error{kPeerFailed} for a malformed text, since the text comes from a
  // peer.
  static NetAddress parse(const std::string& text);
  std::string text() const;
};

// Returns the IP addresses of the host for peers, IPv4 first, without a port:
// those of all interfaces that are up and selected by `wanted`. The syntax is
// NCCL_SOCKET_IFNAME's: prefixes of names ("eth,ib"), whole names ("=eth0"), or
// exclusions ("^docker", "^=virbr0"). Empty selects all interfaces but the
// loopback and Docker's, or simply all where no address would remain.
std::vector<std::string> ownAddresses(const std::string& wanted);
// Returns ownAddresses(); throws Error{kUnavailable} when no address is found.
// `setting` names the variable holding `wanted`, for the text.
std::vector<std::string> requiredAddresses(
    const std::string& wanted,
    const std::string& setting);

bool selectsInterface(const std::string& wanted, const std::string& name);

} // namespace dlslime
