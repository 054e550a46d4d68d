#pragma once

#include "interface/transport.h"
#include "transports/tcp/ready_set.h"

namespace dlslime::tcp {

// The last route in the default order: messages over a side socket of each
// pair.
class TcpTransport final : public Transport, private WakeSource {
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
  WakeSource* wakeSource() override {
    return this;
  }

 private:
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
  std::unique_ptr<Connection> connect(const Context& context);

  // Shared with the threads opening sockets; the threads may outlive the
  // transport.
  const std::shared_ptr<ReadySet> ready_;
};

} // namespace dlslime::tcp
