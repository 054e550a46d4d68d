#pragma once

#include "interface/carrier.h"
#include "interface/transport.h"

namespace dlslime::gloo {

// Messages over a Gloo group of two for each pair, only where a program asks
// for the route. The control socket merely carries the agreement to make the
// group.
class GlooTransport final : public Transport, private WakeSource {
 public:
  GlooTransport();

  std::string_view name() const override {
    return "gloo";
  }
  Status reaches(const PeerIdentity& /*self*/, const PeerIdentity& /*peer*/)
      const override {
    return {};
  }
  Offer offer(const Context& /*context*/) override {
    return {};
  }
  std::unique_ptr<Connection>
  accept(const Context& context, Offer offer, Offer& answer) override;
  std::unique_ptr<Connection> finish(const Context& context, Offer answer)
      override;
  WakeSource* wakeSource() override {
    return this;
  }

 private:
  std::vector<int> wakeFds() const override {
    return {event_->get()};
  }
  void drainWakeFds() override;
  std::unique_ptr<Connection> connect(const Context& context, int end);

  // Shared with the threads of the connections; the threads may outlive the
  // transport for a moment.
  std::shared_ptr<UniqueFd> event_;
};

} // namespace dlslime::gloo
