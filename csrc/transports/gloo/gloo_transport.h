#pragma once

#include "interface/carrier.h"
#include "interface/transport.h"

namespace dlslime::gloo {

// The last route: a Gloo group of two per pair. The control socket only
// carries the agreement to make one.
class GlooTransport final : public Transport {
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
  std::vector<int> wakeFds() const override {
    return {event_->get()};
  }
  void drainWakeFds() override;

 private:
  std::unique_ptr<Connection> connect(const Context& context, int end);

  // Shared with the connections' threads, which may outlive us by a moment.
  std::shared_ptr<UniqueFd> event_;
};

} // namespace dlslime::gloo
