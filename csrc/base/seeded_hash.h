#pragma once

#include <cstdint>
#include <cstring>

#include "base/random.h"

namespace dlslime {

// Hashes a number chosen by a peer. The seed is secret, so a peer can't choose
// many numbers falling into a single bucket.
inline uint64_t seededHash(uint64_t number) {
  static const uint64_t seed = [] {
    uint64_t drawn = 0;
    std::memcpy(&drawn, randomBytes(sizeof(drawn)).data(), sizeof(drawn));
    return drawn;
  }();
  // The last steps of MurmurHash3: each input bit flips about half of the
  // output bits.
  number ^= seed;
  number = (number ^ (number >> 33)) * 0xff51afd7ed558ccdULL;
  number = (number ^ (number >> 33)) * 0xc4ceb9fe1a85ec53ULL;
  return number ^ (number >> 33);
}

} // namespace dlslime
