#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "core/transport.h"
#include "gloo/carrier.h"

namespace dlslime::gloo {

// Messages over a Carrier. Two threads block in it, one each way, so that
// send() and poll() never do. There is no way to pull: large messages are
// streamed in frames.
class GlooConnection final : public Connection {
 public:
  using MakeCarrier = std::function<std::unique_ptr<Carrier>()>;

  // `wake` is called from both threads whenever poll() has news.
  GlooConnection(MakeCarrier make, std::function<void()> wake);
  ~GlooConnection() override;

  std::string_view route() const override {
    return "gloo";
  }
  std::string_view copyName() const override {
    return "frames";
  }
  size_t maxPayload() const override;
  bool send(const MessageHeader& header, ByteSpan payload) override;
  RemoteBuffer expose(uint64_t /*id*/, MemoryView /*view*/) override {
    return {};
  }
  void unexpose(uint64_t /*id*/) override {}
  bool canPull(size_t /*length*/) const override {
    return false;
  }
  void pull(
      uint64_t /*pullId*/,
      uint64_t /*peerId*/,
      RemoteBuffer /*source*/,
      MemoryView /*destination*/) override {}
  void abandon(uint64_t /*pullId*/) override {}
  bool poll(ConnectionEvents& events, Status& broken) override;
  bool claimCopy(CopyJob& /*job*/) override {
    return false;
  }
  void finishCopy(const CopyJob& /*job*/) override {}
  void peerGone() override {}
  bool drained() const override;
  void close() override;

 private:
  struct Packet {
    MessageHeader header;
    Bytes payload;
  };
  void sendLoop();
  void receiveLoop();
  bool nextToSend(Packet& packet);
  void sendPacket(const Packet& packet);
  Packet receivePacket();
  void deliver(Packet packet);
  void breakWith(const std::string& what);

  const std::function<void()> wake_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_:
  std::deque<Packet> outgoing_, incoming_;
  size_t outgoingBytes_ = 0, incomingBytes_ = 0;
  bool refused_ = false; // send() said no: tell when there is room
  bool sending_ = false; // a packet is between the queue and the carrier
  bool closing_ = false;
  Status broken_;
  std::unique_ptr<Carrier> carrier_; // set once, before receiveLoop() starts
  // Lets poll() look without the mutex.
  std::atomic<bool> news_{false};
  std::vector<Packet> polled_; // of poll() alone: keeps its capacity
  std::thread sender_, receiver_;
  MakeCarrier make_;
};

} // namespace dlslime::gloo
