#pragma once

#include <cstdint>
#include <cstring>

#include "base/random.h"

namespace dlslime {

// A hash of numbers that peers choose: without the seed, which no other process
// knows, they could not choose many that share a bucket.
inline uint64_t seededHash(uint64_t number) {
  static const uint64_t seed = [] {
    uint64_t drawn = 0;
    std::memcpy(&drawn, randomBytes(sizeof(drawn)).data(), sizeof(drawn));
    return drawn;
  }();
  // The end of MurmurHash3: each bit changes about half of all.
  number ^= seed;
  number = (number ^ (number >> 33)) * 0xff51afd7ed558ccdULL;
  number = (number ^ (number >> 33)) * 0xc4ceb9fe1a85ec53ULL;
  return number ^ (number >> 33);
}

} // namespace dlslime
