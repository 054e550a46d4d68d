#include "engine/bootstrap/net_address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string_view>

#include "base/name_list.h"
#include "base/status.h"

namespace dlslime {

namespace {

constexpr const char* kUsual = "^lo,docker";

[[noreturn]] void refuse(const std::string& text) {
  throw Error(
      ErrorCode::kPeerFailed, "\"" + text + "\" is not an address and a port");
}

uint16_t parsePort(const std::string& whole, const std::string& text) {
  constexpr size_t kMostDigits = 5;
  const bool digits = !text.empty() && text.size() <= kMostDigits &&
      text.find_first_not_of("0123456789") == std::string::npos;
  const int port = digits ? std::stoi(text) : 0;
  if (port < 1 || port > UINT16_MAX) {
    refuse(whole);
  }
  return static_cast<uint16_t>(port);
}

std::string addressText(const sockaddr* name) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const void* const bytes = name->sa_family == AF_INET
      ? static_cast<const void*>(
            &reinterpret_cast<const sockaddr_in*>(name)->sin_addr)
      : &reinterpret_cast<const sockaddr_in6*>(name)->sin6_addr;
  inet_ntop(name->sa_family, bytes, text.data(), text.size());
  return text.data();
}

// Returns whether peers can use the address: a link-local IPv6 address means
// nothing without a reader's interface.
bool reachable(const sockaddr* name) {
  if (name == nullptr) {
    return false;
  }
  return name->sa_family == AF_INET ||
      (name->sa_family == AF_INET6 &&
       !IN6_IS_ADDR_LINKLOCAL(
           &reinterpret_cast<const sockaddr_in6*>(name)->sin6_addr));
}

std::vector<std::string> addressesOf(
    const ifaddrs* all,
    const std::string& wanted) {
  std::vector<std::string> v4;
  std::vector<std::string> v6;
  for (const auto* entry = all; entry != nullptr; entry = entry->ifa_next) {
    constexpr unsigned int kAlive = IFF_UP | IFF_RUNNING; // up, with a cable
    if ((entry->ifa_flags & kAlive) != kAlive || !reachable(entry->ifa_addr) ||
        !selectsInterface(wanted, entry->ifa_name)) {
      continue;
    }
    const bool old = entry->ifa_addr->sa_family == AF_INET;
    (old ? v4 : v6).push_back(addressText(entry->ifa_addr));
  }
  v4.insert(v4.end(), v6.begin(), v6.end());
  return v4;
}

} // namespace

NetAddress NetAddress::parse(const std::string& text) {
  const auto colon = text.rfind(':');
  if (colon == std::string::npos) {
    refuse(text);
  }
  const auto port = htons(parsePort(text, text.substr(colon + 1)));
  std::string host = text.substr(0, colon);
  NetAddress address;
  auto* const v4 = reinterpret_cast<sockaddr_in*>(&address.name);
  auto* const v6 = reinterpret_cast<sockaddr_in6*>(&address.name);
  const bool old =
      host.size() <= 2 || host.front() != '[' || host.back() != ']';
  host = old ? host : host.substr(1, host.size() - 2);
  address.name.ss_family = old ? AF_INET : AF_INET6;
  address.size = old ? sizeof(*v4) : sizeof(*v6);
  (old ? v4->sin_port : v6->sin6_port) = port;
  void* const bytes = old ? static_cast<void*>(&v4->sin_addr) : &v6->sin6_addr;
  if (inet_pton(address.name.ss_family, host.c_str(), bytes) != 1) {
    refuse(text);
  }
  return address;
}

std::string NetAddress::text() const {
  const auto* const plain = reinterpret_cast<const sockaddr*>(&name);
  const auto host = addressText(plain);
  if (plain->sa_family == AF_INET) {
    const auto* const v4 = reinterpret_cast<const sockaddr_in*>(plain);
    return host + ":" + std::to_string(ntohs(v4->sin_port));
  }
  // A socket for both families shows IPv4 peers as "::ffff:10.9.0.2".
  constexpr std::string_view kMapped = "::ffff:";
  const auto* const v6 = reinterpret_cast<const sockaddr_in6*>(plain);
  const auto port = ":" + std::to_string(ntohs(v6->sin6_port));
  return IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr)
      ? host.substr(kMapped.size()) + port
      : "[" + host + "]" + port;
}

bool selectsInterface(const std::string& wanted, const std::string& name) {
  const auto list = NameList::parse(wanted);
  return list.chooses([&](const std::string& entry) {
    return list.whole ? name == entry : name.rfind(entry, 0) == 0;
  });
}

std::vector<std::string> ownAddresses(const std::string& wanted) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) {
    throwErrno("cannot list the network interfaces", errno);
  }
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> all(
      list, &freeifaddrs);
  if (!wanted.empty()) {
    return addressesOf(all.get(), wanted);
  }
  auto usual = addressesOf(all.get(), kUsual);
  return usual.empty() ? addressesOf(all.get(), "") : usual;
}

std::vector<std::string> requiredAddresses(
    const std::string& wanted,
    const std::string& setting) {
  auto found = ownAddresses(wanted);
  if (found.empty()) {
    throw Error(
        ErrorCode::kUnavailable,
        "this host has no network interface that is up" +
            (wanted.empty()
                 ? ""
                 : " and in " + (setting.empty() ? wanted : setting)));
  }
  return found;
}

} // namespace dlslime
