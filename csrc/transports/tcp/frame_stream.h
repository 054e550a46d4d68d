#pragma once

#include <optional>
#include <span>

#include "base/fork_guard.h"
#include "interface/side_socket.h"
#include "transports/tcp/frame_format.h"
#include "transports/tcp/frame_reader.h"
#include "transports/tcp/frame_writer.h"

namespace dlslime::tcp {

// Messages over a non-blocking stream socket: each frame is a header and as
// many payload bytes as the header says. Used by a single thread at a time. The
// functions are explained at FrameWriter and FrameReader.
class FrameStream {
 public:
  static constexpr size_t kMostPayloadBytes = kMostFramePayload;

  explicit FrameStream(SideSocket socket)
      : fd_(std::move(socket.fd)),
        writer_(fd_.get()),
        reader_(fd_.get(), socket.early) {}

  int fd() const {
    return fd_.get();
  }
  [[nodiscard]] bool
  put(const MessageHeader& header, ByteSpan payload, bool wait) {
    return writer_.put(header, payload, wait);
  }
  Fault putGathered(
      const MessageHeader& header,
      std::span<const ByteSpan> places) {
    return writer_.putGathered(header, places);
  }
  void putLast(const MessageHeader& header) {
    writer_.putLast(header);
  }
  bool flush() {
    return writer_.flush();
  }
  size_t unsent() const {
    return writer_.unsent();
  }
  bool full() const {
    return writer_.full();
  }
  bool allSent() const {
    return writer_.allSent();
  }
  void dropUnsent() {
    writer_.dropUnsent();
  }
  void expectEnd() {
    writer_.expectEnd();
  }

  uint64_t received() const {
    return reader_.received();
  }
  bool fill() {
    return thenCheck(reader_.fill());
  }
  std::optional<Frame> begun() const {
    return reader_.begun();
  }
  bool fillInto(const Placement& placement) {
    return thenCheck(reader_.fillInto(placement));
  }
  std::optional<Frame> next() {
    auto frame = reader_.next();
    thenCheck(true);
    return frame;
  }
  // Returns why nothing more is received; ok while the stream works. If sending
  // has failed before, that is the cause.
  const Status& broken() const {
    return reader_.broken().ok() || writer_.failure().ok() ? reader_.broken()
                                                           : writer_.failure();
  }

 private:
  // A stream that has ended sends nothing, either.
  bool thenCheck(bool result) {
    if (!reader_.broken().ok()) {
      writer_.stop();
    }
    return result;
  }

  const UnforkedFd fd_;
  FrameWriter writer_;
  FrameReader reader_;
};

} // namespace dlslime::tcp
