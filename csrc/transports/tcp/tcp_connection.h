#pragma once

#include <memory>
#include <mutex>
#include <optional>

#include "interface/transport.h"
#include "transports/tcp/frame_stream.h"
#include "transports/tcp/ready_set.h"

namespace dlslime::tcp {

// The socket of a connection while a thread waits for it: the thread may
// outlive the connection.
class PendingSocket {
 public:
  // Throws Error: no thread can be started.
  static std::shared_ptr<PendingSocket> open(
      OpenSideSocket open,
      std::function<void()> wake);
  // Once it is there. Throws Error: it won't be.
  std::optional<SideSocket> take();
  void giveUp(); // nobody waits any more

 private:
  void run(const OpenSideSocket& open) noexcept;

  std::mutex mutex_;
  // Guarded by mutex_:
  std::optional<SideSocket> socket_;
  Status failed_;
  bool givenUp_ = false;
};

// Messages over a socket. There is no way to pull: large messages are streamed
// in frames.
class TcpConnection final : public Connection, private Gatherer {
 public:
  // How long the other end may take to open its end: less than a handshake, so
  // that it is told why.
  static constexpr milliseconds kOpenTime{9000};

  TcpConnection(
      std::shared_ptr<ReadySet> ready,
      std::shared_ptr<PendingSocket> pending)
      : ready_(std::move(ready)), pending_(std::move(pending)) {}
  ~TcpConnection() override;

  std::string_view route() const override {
    return "tcp";
  }
  std::string_view copyName() const override {
    return "frames";
  }
  size_t maxPayload() const override {
    return FrameStream::kMostPayloadBytes;
  }
  bool send(const MessageHeader& header, ByteSpan payload) override;
  Gatherer* gatherer() override {
    return this;
  }
  void beginBatch() override {
    batch_ = true;
  }
  void endBatch() override;
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
  void peerClosed() override;
  bool drained() const override;
  bool allSent() override {
    return !stream_ || stream_->allSent();
  }
  // While it is being opened it can't be: nothing can be told the other end.
  Replaceable replaceable() const override {
    return stream_ ? Replaceable::kWhole : Replaceable::kNever;
  }
  void sever() override;
  bool verify(Bytes& result) override;
  bool close(bool atOnce) override;

 private:
  bool canGather(size_t payload) override;
  Fault sendGathered(
      const MessageHeader& header,
      std::span<const ByteSpan> places) override;
  bool adopt(); // throws Error
  bool sendRest();
  bool takeIn(ConnectionEvents& events, int most);
  bool fill(ConnectionEvents& events);
  void deliver(ConnectionEvents& events, const Frame& frame);

  const std::shared_ptr<ReadySet> ready_;
  const std::shared_ptr<PendingSocket> pending_;
  std::optional<FrameStream> stream_; // once the socket is there
  ReadySet::News news_;
  Status failed_; // it won't be
  bool peerEnded_ = false;
  bool batch_ = false; // between beginBatch() and endBatch()
  bool refused_ = false; // send() has said no
  size_t budget_ = 0; // bytes that go out before the next poll()
  bool severed_ = false;
  bool peerParted_ = false; // or nothing comes any more
};

} // namespace dlslime::tcp
