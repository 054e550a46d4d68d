#include "engine/connect/prober.h"

#include <utility>

#include "base/log.h"

namespace dlslime {

void Prober::begin(ConnectRequest request, Standing standing) {
  std::erase_if(standing_, [this](const auto& entry) { // ended by drop()
    return !dialer_.dials(entry.first);
  });
  request.probeUpTo = standing.route;
  standing_[request.key] = std::move(standing);
  dialer_.begin(request);
}

// A message has arrived over the made connection, which is now closed again: a
// better one is worth a replacement by Failover.
void Prober::onMade(MadeConnection made, ControlSocket) {
  const auto standing = standing_.at(made.key);
  standing_.erase(made.key);
  const auto& found = *made.connection;
  const auto info = found.info();
  if (found.route() != standing.route || info.merit > standing.merit) {
    better_.push_back(
        {made.key,
         std::string(found.route()) +
             (info.devices.empty() ? "" : " by " + info.devices)});
  }
}

void Prober::onFailed(const ChannelKey& key, Status why, bool) {
  standing_.erase(key);
  logDebug("no better connection is possible: " + why.message());
}

} // namespace dlslime
