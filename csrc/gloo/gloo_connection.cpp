#include "gloo/gloo_connection.h"

namespace dlslime::gloo {

bool GlooConnection::poll(ConnectionEvents& events, Status& broken, int most) {
  if (next_ == polled_.size()) {
    polled_.clear();
    next_ = 0;
    if (!pump_->take(polled_, broken)) {
      return false;
    }
  }
  for (int i = 0; i < most && next_ < polled_.size(); ++i) {
    const auto& packet = polled_[next_++];
    events.onMessage(packet.header, packet.payload);
  }
  return true;
}

} // namespace dlslime::gloo
