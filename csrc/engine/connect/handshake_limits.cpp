#include "engine/connect/handshake_limits.h"

#include <sys/resource.h>

#include <algorithm>

namespace dlslime {

HandshakeLimits HandshakeLimits::ofProcess() {
  HandshakeLimits limits;
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) {
    return limits;
  }
  const auto part = [&](size_t parts, size_t most) {
    return std::clamp<size_t>(files.rlim_cur / parts, 4, most);
  };
  limits.unproven = part(16, limits.unproven);
  limits.proven = part(8, limits.proven);
  limits.provenOfOneSource = std::max<size_t>(limits.proven / 4, 2);
  limits.connectionsOfOneHost = part(8, limits.connectionsOfOneHost);
  limits.connectionsOfOneProcess =
      std::min(limits.connectionsOfOneProcess, limits.connectionsOfOneHost);
  return limits;
}

} // namespace dlslime
