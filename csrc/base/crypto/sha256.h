#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "base/bytes.h"

// Keyed hashes for handshakes. Not for bulk data: about 150 MB/s.
namespace dlslime {

using Digest = std::array<std::byte, 32>;

// SHA-256 (FIPS 180-4) of bytes given in parts.
class Sha256 {
 public:
  Sha256& add(ByteSpan bytes);
  // Returns the hash of all bytes added; the object is used up.
  Digest finish();

 private:
  void mix(const std::byte* block);

  std::array<uint32_t, 8> state_{
      0x6a09e667,
      0xbb67ae85,
      0x3c6ef372,
      0xa54ff53a,
      0x510e527f,
      0x9b05688c,
      0x1f83d9ab,
      0x5be0cd19};
  std::array<std::byte, 64> block_{}; // bytes of the begun block
  uint64_t bytes_ = 0;
};

// HMAC-SHA-256 (RFC 2104) of bytes given in parts.
class Hmac {
 public:
  explicit Hmac(ByteSpan key);

  Hmac& add(ByteSpan bytes) {
    inner_.add(bytes);
    return *this;
  }
  Hmac& add(std::string_view text) {
    return add(std::as_bytes(std::span(text)));
  }
  // Returns the code of all bytes added; the object is used up.
  Digest finish();

 private:
  Sha256 inner_, outer_;
};

} // namespace dlslime
