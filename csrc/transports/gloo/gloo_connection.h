#pragma once

#include <memory>
#include <vector>

#include "interface/transport.h"
#include "transports/gloo/gloo_pump.h"

namespace dlslime::gloo {

// Messages over a Carrier, moved by the threads of a GlooPump, so that send()
// and poll() never block. The route cannot pull: large messages are streamed in
// frames.
class GlooConnection final : public Connection, public ReplaceAbility {
 public:
  GlooConnection(
      GlooPump::MakeCarrier make,
      std::function<void()> wake,
      milliseconds drainTime = GlooPump::kDrainTime)
      : Connection({"gloo", kMostPayloadBytes}),
        pump_(std::make_shared<GlooPump>(
            std::move(make),
            std::move(wake),
            drainTime)) {
    abilities_.replacing = this;
    pump_->start();
  }
  ~GlooConnection() override {
    pump_->close(true);
  }

  ConnectionInfo info() const override {
    return ConnectionInfo("frames");
  }
  bool send(const MessageHeader& header, ByteSpan payload) override {
    return pump_->put(header, payload);
  }
  bool poll(ConnectionEvents& events, Status& broken, int most) override;
  void peerClosed() override {
    pump_->peerClosed();
  }
  bool drained() const override;
  bool allSent() override {
    return pump_->allSent();
  }
  // Returns kNever until the carrier is made, because the peer cannot be told
  // before.
  When replaceable() const override {
    return pump_->made() ? When::kWhole : When::kNever;
  }
  void sever() override;
  bool close(bool atOnce) override {
    return pump_->close(atOnce);
  }

 private:
  const std::shared_ptr<GlooPump> pump_;
  // Packets taken from the pump; those before next_ have been delivered.
  std::vector<Packet> polled_;
  size_t next_ = 0;
  bool severed_ = false;
  bool peerParted_ = false; // the peer has severed, or nothing more comes
};

} // namespace dlslime::gloo
