#pragma once

#include <infiniband/verbs.h>

#include <cstring>
#include <optional>
#include <string>
#include <vector>

namespace dlslime::rdma {

// What an address handle can name: its index has eight bits, while tables may
// be longer.
constexpr uint32_t kMostGids = 256;

enum class GidKind : uint8_t { kInfiniBand, kRoceV1, kRoceV2 };

// One entry of a port's GID table.
struct Gid {
  uint32_t index = 0;
  GidKind kind = GidKind::kRoceV2;
  ibv_gid value{};
  bool operator==(const Gid& other) const {
    return index == other.index && kind == other.kind &&
        std::memcmp(value.raw, other.value.raw, sizeof(value.raw)) == 0;
  }
};

// The address under which peers reach the port. On Ethernet RoCE v2 alone is
// routed and marked for congestion control, so v1 is never chosen: IPv4-mapped
// first, global IPv6 next, link-local (one cable or VLAN) last. `forced` is an
// index the user asked for (DLSLIME_GID_INDEX), or -1. Null: there is none.
std::optional<Gid>
chooseGid(const std::vector<Gid>& table, bool ethernet, int forced);

// How many leading bits are the same, of what tells of networks: the more, the
// nearer two addresses are. Of IPv4 all of it; else the prefix, since the other
// half is the port's own number.
int commonNetworkBits(const ibv_gid& one, const ibv_gid& other);

// No other entry of the table could be a better one.
bool isBest(const Gid& gid, bool ethernet);

// "10.9.0.1" for IPv4-mapped ones, else "fe80::1".
std::string gidText(const ibv_gid& gid);

} // namespace dlslime::rdma
