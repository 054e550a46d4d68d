#include "transports/rdma/device/gid.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace dlslime::rdma {

namespace {

constexpr std::array<uint8_t, 12>
    kIpv4Mapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

bool isIpv4(const ibv_gid& gid) {
  return std::memcmp(gid.raw, kIpv4Mapped.data(), kIpv4Mapped.size()) == 0;
}

bool isLinkLocal(const ibv_gid& gid) {
  return gid.raw[0] == 0xfe && (gid.raw[1] & 0xc0) == 0x80;
}

bool isZero(const ibv_gid& gid) {
  // The first entry of an InfiniBand port is never zero, but an empty entry of
  // a RoCE port is.
  return std::all_of(
      std::begin(gid.raw), std::end(gid.raw), [](uint8_t b) { return b == 0; });
}

// Returns the rank of an entry, lower is better, or -1 if the entry is not
// usable.
int costOf(const Gid& gid, bool ethernet) {
  if (isZero(gid.value)) {
    return -1;
  }
  if (!ethernet) {
    return gid.kind == GidKind::kInfiniBand ? 0 : -1;
  }
  if (gid.kind != GidKind::kRoceV2) {
    return -1;
  }
  if (isIpv4(gid.value)) {
    return 0;
  }
  return isLinkLocal(gid.value) ? 2 : 1;
}

} // namespace

std::optional<Gid>
chooseGid(const std::vector<Gid>& table, bool ethernet, int forced) {
  std::optional<Gid> best;
  for (const auto& gid : table) {
    if (forced >= 0) {
      if (gid.index == static_cast<uint32_t>(forced) && !isZero(gid.value)) {
        return gid;
      }
      continue;
    }
    const int cost = costOf(gid, ethernet);
    if (cost >= 0 && (!best || cost < costOf(*best, ethernet))) {
      best = gid; // the first of equals: the kernel's order
    }
  }
  return best;
}

bool isBest(const Gid& gid, bool ethernet) {
  return costOf(gid, ethernet) == 0;
}

int commonNetworkBits(const ibv_gid& one, const ibv_gid& other) {
  constexpr size_t kPrefixBytes = 8;
  const bool ipv4 = isIpv4(one) && isIpv4(other);
  int bits = 0;
  for (size_t i = 0; i < (ipv4 ? sizeof(one.raw) : kPrefixBytes); ++i) {
    const auto different = static_cast<uint8_t>(one.raw[i] ^ other.raw[i]);
    bits += std::countl_zero(different);
    if (different != 0) {
      break;
    }
  }
  return bits;
}

std::string gidText(const ibv_gid& gid) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const bool ipv4 = isIpv4(gid);
  inet_ntop(
      ipv4 ? AF_INET : AF_INET6,
      ipv4 ? gid.raw + kIpv4Mapped.size() : gid.raw,
      text.data(),
      text.size());
  return text.data();
}

namespace {
const char* kindText(GidKind kind) {
  switch (kind) {
    case GidKind::kInfiniBand:
      return "InfiniBand";
    case GidKind::kRoceV1:
      return "RoCE v1";
    case GidKind::kRoceV2:
      break;
  }
  return "RoCE v2";
}
} // namespace

std::string gidTableText(const std::vector<Gid>& table) {
  constexpr size_t kMost = 8;
  std::string text;
  size_t count = 0;
  for (const auto& gid : table) {
    if (!isZero(gid.value) && ++count <= kMost) {
      text += (text.empty() ? "" : ", ") + std::to_string(gid.index) + ": " +
          gidText(gid.value) + " (" + kindText(gid.kind) + ")";
    }
  }
  if (count > kMost) {
    text += " and " + std::to_string(count - kMost) + " more";
  }
  return count == 0 ? "none" : text;
}

} // namespace dlslime::rdma
