#include "base/crypto/sha256.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace dlslime {

namespace {

constexpr size_t kBlock = 64; // bytes
constexpr size_t kRounds = 64;

// The first 32 bits of the fractions of the cube roots of the first 64 primes.
constexpr std::array<uint32_t, kRounds> kConstants{
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1,
    0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3,
    0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786,
    0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147,
    0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13,
    0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
    0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a,
    0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208,
    0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t bigEndian(const std::byte* at) {
  uint32_t value = 0;
  for (size_t i = 0; i < sizeof(value); ++i) {
    value = value << 8 | static_cast<uint32_t>(at[i]);
  }
  return value;
}

template <typename T>
void writeBigEndian(T value, std::byte* at) {
  for (size_t i = sizeof(value); i-- > 0; value >>= 8) {
    at[i] = static_cast<std::byte>(value & 0xff);
  }
}

std::array<uint32_t, kRounds> schedule(const std::byte* block) {
  std::array<uint32_t, kRounds> words{};
  for (size_t i = 0; i < 16; ++i) {
    words[i] = bigEndian(block + 4 * i);
  }
  for (size_t i = 16; i < kRounds; ++i) {
    const auto a = words[i - 15];
    const auto b = words[i - 2];
    words[i] = words[i - 16] + words[i - 7] +
        (std::rotr(a, 7) ^ std::rotr(a, 18) ^ (a >> 3)) +
        (std::rotr(b, 17) ^ std::rotr(b, 19) ^ (b >> 10));
  }
  return words;
}

} // namespace

void Sha256::mix(const std::byte* block) {
  const auto words = schedule(block);
  auto [a, b, c, d, e, f, g, h] = state_;
  for (size_t i = 0; i < kRounds; ++i) {
    const uint32_t one = h +
        (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
        ((e & f) ^ (~e & g)) + kConstants[i] + words[i];
    const uint32_t two =
        (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) +
        ((a & b) ^ (a & c) ^ (b & c));
    h = g;
    g = f;
    f = e;
    e = d + one;
    d = c;
    c = b;
    b = a;
    a = one + two;
  }
  const std::array<uint32_t, 8> mixed{a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < mixed.size(); ++i) {
    state_[i] += mixed[i];
  }
}

Sha256& Sha256::add(ByteSpan bytes) {
  while (!bytes.empty()) {
    const size_t begun = bytes_ % kBlock;
    const size_t taken = std::min(bytes.size(), kBlock - begun);
    std::memcpy(block_.data() + begun, bytes.data(), taken);
    bytes_ += taken;
    bytes = bytes.subspan(taken);
    if (bytes_ % kBlock == 0) {
      mix(block_.data());
    }
  }
  return *this;
}

Digest Sha256::finish() {
  const uint64_t bits = bytes_ * 8;
  constexpr size_t kLengthAt = kBlock - sizeof(bits);
  std::array<std::byte, kBlock> padding{std::byte{0x80}};
  const size_t begun = bytes_ % kBlock;
  add(
      {padding.data(),
       (begun < kLengthAt ? kLengthAt : kBlock + kLengthAt) - begun});
  std::array<std::byte, sizeof(bits)> length{};
  writeBigEndian(bits, length.data());
  add(length);
  Digest digest{};
  for (size_t i = 0; i < state_.size(); ++i) {
    writeBigEndian(state_[i], digest.data() + 4 * i);
  }
  return digest;
}

Hmac::Hmac(ByteSpan key) {
  std::array<std::byte, kBlock> whole{};
  if (key.size() > kBlock) {
    const auto shorter = Sha256().add(key).finish();
    std::copy(shorter.begin(), shorter.end(), whole.begin());
  } else {
    std::copy(key.begin(), key.end(), whole.begin());
  }
  auto inside = whole;
  auto outside = whole;
  for (size_t i = 0; i < kBlock; ++i) {
    inside[i] ^= std::byte{0x36};
    outside[i] ^= std::byte{0x5c};
  }
  inner_.add(inside);
  outer_.add(outside);
}

Digest Hmac::finish() {
  return outer_.add(inner_.finish()).finish();
}

} // namespace dlslime
