#pragma once

#include <memory>

#include "base/config.h"
#include "base/log_once.h"
#include "interface/transport.h"
#include "transports/common/offered.h"
#include "transports/shm/doorbell.h"

namespace dlslime::shm {

// Makes connections between processes of a host. The control socket must be a
// unix socket, to carry the descriptors of the shared memory.
class ShmTransport final : public Transport, private WakeSource {
 public:
  // Throws Error if the page of the doorbell cannot be made (memfd_create
  // fails).
  explicit ShmTransport(const Config& config);

  std::string_view name() const override {
    return "shm";
  }
  Status reaches(const PeerIdentity& self, const PeerIdentity& peer)
      const override;
  Offer offer(const Context& context) override;
  std::unique_ptr<Connection>
  accept(const Context& context, Offer offer, Offer& answer) override;
  std::unique_ptr<Connection> finish(const Context& context, Offer answer)
      override;
  void withdraw(const Context& context) override {
    offered_.drop(context.nonce);
  }
  WakeSource* wakeSource() override {
    return this;
  }

 private:
  void beginSleep() override {
    doorbell_.setAsleep(true);
  }
  void endSleep() override {
    doorbell_.setAsleep(false);
  }
  struct PeerHalf;
  Offer half(bool withSegment, const std::string& nonce);
  PeerHalf parse(Offer offer, bool withSegment) const;
  std::unique_ptr<Connection> connect(
      const Context& context,
      PeerHalf peer,
      Segment segment,
      int side) const;

  void tellRefusal(const Context& context, int error) const;

  const Config config_;
  mutable LogOnce refusals_;
  Doorbell doorbell_;
  Offered<Segment> offered_;
};

} // namespace dlslime::shm
