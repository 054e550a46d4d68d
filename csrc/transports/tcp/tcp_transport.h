#pragma once

#include "interface/transport.h"
#include "transports/tcp/ready_set.h"

namespace dlslime::tcp {

// The last route: a socket for each pair, beside the one on which the two have
// met.
class TcpTransport final : public Transport {
 public:
  TcpTransport() : ready_(std::make_shared<ReadySet>()) {}

  std::string_view name() const override {
    return "tcp";
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
    return {ready_->fd()};
  }
  void drainWakeFds() override {
    ready_->lookNow();
  }
  void beginSleep() override {
    ready_->beginSleep();
  }
  void endSleep() override {
    ready_->endSleep();
  }

 private:
  std::unique_ptr<Connection> connect(const Context& context);

  // Shared with threads that open sockets, which may outlive this.
  const std::shared_ptr<ReadySet> ready_;
};

} // namespace dlslime::tcp
