#include "gloo/gloo_connection.h"

namespace dlslime::gloo {

bool GlooConnection::poll(ConnectionEvents& events, Status& broken) {
  if (!pump_->take(polled_, broken)) {
    return false;
  }
  for (const auto& packet : polled_) {
    events.onMessage(packet.header, packet.payload);
  }
  polled_.clear();
  return true;
}

} // namespace dlslime::gloo
