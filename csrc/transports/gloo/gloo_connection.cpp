#include "transports/gloo/gloo_connection.h"

namespace dlslime::gloo {

namespace {
// Type of the last packet from an end severing the connection; no message has
// type 0.
constexpr MessageType kParting{};
} // namespace

void GlooConnection::sever() {
  severed_ = true;
  MessageHeader last;
  last.type = kParting;
  pump_->putLast(last);
}

bool GlooConnection::drained() const {
  if (next_ != polled_.size()) {
    return false;
  }
  return severed_ ? peerParted_ && pump_->allSent() : pump_->drained();
}

bool GlooConnection::poll(ConnectionEvents& events, Status& broken, int most) {
  if (next_ == polled_.size()) {
    polled_.clear();
    next_ = 0;
    if (!pump_->take(polled_, broken)) {
      return false;
    }
    peerParted_ |= !broken.ok();
  }
  for (int i = 0; i < most && next_ < polled_.size(); ++i) {
    const auto& packet = polled_[next_++];
    if (packet.header.type == kParting) {
      peerParted_ = true;
      events.onParted();
    } else if (!peerParted_) {
      events.onMessage(packet.header, packet.payload);
    }
  }
  return true;
}

} // namespace dlslime::gloo
