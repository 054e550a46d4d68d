#pragma once

#include <memory>
#include <vector>

#include "interface/transport.h"
#include "transports/gloo/gloo_pump.h"

namespace dlslime::gloo {

// Messages over a Carrier, by a GlooPump's threads, so that send() and poll()
// never block. There is no way to pull: large messages are streamed in frames.
class GlooConnection final : public Connection {
 public:
  GlooConnection(
      GlooPump::MakeCarrier make,
      std::function<void()> wake,
      milliseconds drainTime = GlooPump::kDrainTime)
      : pump_(std::make_shared<GlooPump>(
            std::move(make),
            std::move(wake),
            drainTime)) {
    pump_->start();
  }
  ~GlooConnection() override {
    pump_->close(true);
  }

  std::string_view route() const override {
    return "gloo";
  }
  std::string_view copyName() const override {
    return "frames";
  }
  size_t maxPayload() const override {
    return kMostPayloadBytes;
  }
  bool send(const MessageHeader& header, ByteSpan payload) override {
    return pump_->put(header, payload);
  }
  RemoteBuffer expose(uint64_t /*id*/, MemoryView /*view*/) override {
    return {};
  }
  void unexpose(uint64_t /*id*/) override {}
  bool pull(
      uint64_t /*pullId*/,
      uint64_t /*peerId*/,
      RemoteBuffer /*source*/,
      MemoryView /*destination*/) override {
    return false;
  }
  void abandon(uint64_t /*pullId*/) override {}
  bool poll(ConnectionEvents& events, Status& broken, int most) override;
  void endPulls() override {}
  void peerClosed() override {
    pump_->peerClosed();
  }
  bool drained() const override;
  bool allSent() override {
    return pump_->allSent();
  }
  // In the making it can't be: nothing can be told the other end yet.
  Replaceable replaceable() const override {
    return pump_->made() ? Replaceable::kWhole : Replaceable::kNever;
  }
  void sever() override;
  bool close(bool atOnce) override {
    return pump_->close(atOnce);
  }

 private:
  const std::shared_ptr<GlooPump> pump_;
  // Taken from the pump; what comes before next_ has been given out.
  std::vector<Packet> polled_;
  size_t next_ = 0;
  bool severed_ = false;
  bool peerParted_ = false; // or nothing comes any more
};

} // namespace dlslime::gloo
