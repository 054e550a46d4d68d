#pragma once

#include <memory>
#include <optional>

#include "base/threads/mutex.h"
#include "interface/transport.h"
#include "transports/tcp/frame_stream.h"
#include "transports/tcp/ready_set.h"

namespace dlslime::tcp {

// State shared by a connection and the thread opening its socket; the thread
// may outlive the connection.
class PendingSocket {
 public:
  // Starts the thread, which calls `wake` at the end. Throws Error if no thread
  // can be started.
  static std::shared_ptr<PendingSocket> open(
      OpenSideSocket open,
      std::function<void()> wake);
  // Returns the socket once the thread has opened it. Throws Error if opening
  // has failed.
  std::optional<SideSocket> take();
  void giveUp(); // the connection wants no socket any more

 private:
  void run(const OpenSideSocket& open) noexcept;

  Mutex mutex_;
  std::optional<SideSocket> socket_ GUARDED_BY(mutex_);
  Status failed_ GUARDED_BY(mutex_);
  bool givenUp_ GUARDED_BY(mutex_) = false;
};

// Messages over a side socket. The route cannot pull: large messages are
// streamed in frames.
class TcpConnection final : public Connection,
                            public ReplaceAbility,
                            public VerifyAbility,
                            public BatchAbility,
                            private Gatherer {
 public:
  // Time for both ends to open the socket; shorter than a handshake, so that
  // the peer is told why the connection failed.
  static constexpr milliseconds kOpenTime{9000};

  TcpConnection(
      std::shared_ptr<ReadySet> ready,
      std::shared_ptr<PendingSocket> pending)
      : Connection({"tcp", FrameStream::kMostPayloadBytes}),
        ready_(std::move(ready)),
        pending_(std::move(pending)) {
    abilities_.gatherer = this;
    abilities_.batching = this;
    abilities_.verifying = this;
    abilities_.replacing = this;
  }
  ~TcpConnection() override;

  ConnectionInfo info() const override {
    return ConnectionInfo("frames");
  }
  bool send(const MessageHeader& header, ByteSpan payload) override;
  void beginBatch() override {
    batch_ = true;
  }
  void endBatch() override;
  bool poll(ConnectionEvents& events, Status& broken, int most) override;
  void peerClosed() override;
  bool drained() const override;
  bool allSent() override {
    return !stream_ || stream_->allSent();
  }
  // Returns kNever until the socket is open, because the peer cannot be told
  // before.
  When replaceable() const override {
    return stream_ ? When::kWhole : When::kNever;
  }
  void sever() override;
  bool verify(Bytes& result) override;
  void confirm(ByteSpan /*result*/) override {}
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
  std::optional<FrameStream> stream_; // set once the socket is open
  ReadySet::News news_;
  Status failed_; // why the socket could not be opened
  bool peerEnded_ = false;
  bool batch_ = false; // between beginBatch() and endBatch()
  bool refused_ = false; // send() or canGather() has returned false
  size_t budget_ = 0; // bytes that may be sent before the next poll()
  bool severed_ = false;
  bool peerParted_ = false; // the peer has severed, or nothing more comes
};

} // namespace dlslime::tcp
