#include "engine/bootstrap/handshake_limits.h"

#include <sys/resource.h>

#include <algorithm>

#include "base/status.h"

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

void HandshakeLimits::requireRoomToBegin(size_t begun, size_t ofOrigin) const {
  if (begun >= proven || ofOrigin >= provenOfOneSource) {
    throw Error(
        ErrorCode::kExhausted,
        std::to_string(begun) +
            " handshakes have begun and are not finished: at most " +
            std::to_string(proven) + ", and " +
            std::to_string(provenOfOneSource) +
            " of one process or host, are answered at a time");
  }
}

void HandshakeLimits::requireRoomToStay(
    const std::string& origin,
    size_t open,
    bool one) const {
  const auto most = one ? connectionsOfOneProcess : connectionsOfOneHost;
  if (open >= most) {
    throw Error(
        ErrorCode::kExhausted,
        origin + " has " + std::to_string(open) +
            " connections to this process, and may have no more than " +
            std::to_string(most) + (one ? "" : " (by ulimit -n)"));
  }
}

} // namespace dlslime
