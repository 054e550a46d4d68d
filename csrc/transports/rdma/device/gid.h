#pragma once

#include <infiniband/verbs.h>

#include <cstring>
#include <optional>
#include <string>
#include <vector>

namespace dlslime::rdma {

// Number of table entries usable by an address handle: the handle's index has
// eight bits, but tables may be longer.
constexpr uint32_t kMostGids = 256;

enum class GidKind : uint8_t { kInfiniBand, kRoceV1, kRoceV2 };

// An entry of a port's GID table.
struct Gid {
  uint32_t index = 0;
  GidKind kind = GidKind::kRoceV2;
  ibv_gid value{};
  bool operator==(const Gid& other) const {
    return index == other.index && kind == other.kind &&
        std::memcmp(value.raw, other.value.raw, sizeof(value.raw)) == 0;
  }
};

// Returns the address by which peers reach the port, or nothing if no entry is
// usable. On Ethernet only RoCE v2 is routed and marked for congestion control,
// so v1 is never chosen: IPv4-mapped entries come first, then global IPv6, then
// link-local (a single cable or VLAN). `forced` is the index set by
// DLSLIME_GID_INDEX, or -1.
std::optional<Gid>
chooseGid(const std::vector<Gid>& table, bool ethernet, int forced);

// Returns the number of leading network bits shared by two addresses; more bits
// mean nearer. For IPv4 all bits count, else only the prefix, because the other
// half is the port's own number.
int commonNetworkBits(const ibv_gid& one, const ibv_gid& other);

// Returns whether no entry of any table could be better.
bool isBest(const Gid& gid, bool ethernet);

// Returns "10.9.0.1" for an IPv4-mapped address, else a text like "fe80::1".
std::string gidText(const ibv_gid& gid);

// Returns "0: 10.9.0.1 (RoCE v2), ..." of the first non-empty entries, or
// "none".
std::string gidTableText(const std::vector<Gid>& table);

} // namespace dlslime::rdma
