#pragma once

#include <cstddef>
#include <string>

#include "base/clock.h"

namespace dlslime {

// Limits on incoming handshakes and connections. A proven handshake takes three
// descriptors, an unproven handshake a single descriptor: together at most half
// of RLIMIT_NOFILE.
struct HandshakeLimits {
  size_t unproven = 128;
  size_t proven = 256;
  // Limit for a local process or for a remote host, so that all remaining
  // origins have room.
  size_t provenOfOneSource = 64;

  // Limit on established connections of a local process, since few are needed.
  // Each connection takes up to three descriptors.
  size_t connectionsOfOneProcess = 64;
  // Limit on established connections of all processes of a remote host, or of
  // all local processes with invisible pids (in containers).
  size_t connectionsOfOneHost = 65536;

  // Returns the limits that fit RLIMIT_NOFILE.
  static HandshakeLimits ofProcess();

  // Throws Error when no further handshake is answered: `begun` are not
  // finished, and `ofOrigin` of them are of the new one's process or host.
  void requireRoomToBegin(size_t begun, size_t ofOrigin) const;
  // Throws Error when the origin has as many connections as allowed: a member
  // may claim to be any number of processes, and each connection holds memory
  // and descriptors of this process. `one`: the origin is a process, and not a
  // host.
  void requireRoomToStay(const std::string& origin, size_t open, bool one)
      const;

  // Time for an answer: a peer answers in microseconds unless starved of CPU.
  static constexpr milliseconds kHandshakeTime{10000};
  // Time for a connection's proof, mere microseconds for a genuine peer.
  static constexpr milliseconds kProofTime{1000};
  // Age up to which a connection that has named this process is not dropped for
  // a new connection.
  static constexpr milliseconds kSafeTime{200};
};

} // namespace dlslime
