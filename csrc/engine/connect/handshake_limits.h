#pragma once

#include <cstddef>

#include "base/clock.h"

namespace dlslime {

// How many handshakes a process answers at the same time. One that has proved
// itself takes three descriptors, one that has not takes one: together they
// take at most half of what RLIMIT_NOFILE gives.
struct HandshakeLimits {
  size_t unproven = 128;
  size_t proven = 256;
  // Of one process of this host, or of one other host: others have room beside
  // it, whatever it does.
  size_t provenOfOneSource = 64;

  // Connections that stay, of one process of this host, which needs one or a
  // few; and of all processes of one other host, or of a container's whose
  // numbers are not to be seen here. Each takes up to three descriptors.
  size_t connectionsOfOneProcess = 64;
  size_t connectionsOfOneHost = 65536;

  static HandshakeLimits ofProcess();

  // Until a connection has proved itself, which takes microseconds.
  static constexpr milliseconds kProofTime{1000};
  // Until another may take the place of one that is about to.
  static constexpr milliseconds kSafeTime{200};
};

} // namespace dlslime
