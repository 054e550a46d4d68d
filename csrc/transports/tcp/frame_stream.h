#pragma once

#include <sys/uio.h>

#include <optional>

#include "base/fork_guard.h"
#include "base/status.h"
#include "interface/bulk_payload.h"
#include "interface/memory.h"
#include "interface/message.h"
#include "interface/side_socket.h"

namespace dlslime::tcp {

struct Frame {
  MessageHeader header;
  // Valid until the next fill(). Of a placed frame: the part of the payload
  // before the places.
  ByteSpan payload;
  bool placed = false; // fillInto() has read the rest of the payload
  Fault fault = Fault::kNone; // why a placed rest is incomplete
};

// Messages over a non-blocking stream socket: each frame is a header and as
// many payload bytes as the header says. Bytes not yet taken by the socket wait
// in a buffer of fixed size. Used by a single thread at a time.
class FrameStream {
 public:
  static constexpr size_t kMostPayloadBytes = 128 * 1024;

  explicit FrameStream(SideSocket socket);

  int fd() const {
    return fd_.get();
  }
  // Sends a frame, or keeps the frame for a later flush(). Returns false if the
  // buffer has no room: try again after a flush(). `wait`: the frame may go out
  // together with later frames, at the next flush().
  [[nodiscard]] bool
  put(const MessageHeader& header, ByteSpan payload, bool wait);
  // Sends a frame of bytes that need not be readable; call only when nothing is
  // unsent. After a fault, which is returned, the peer drops the part of the
  // frame already sent.
  Fault putGathered(
      const MessageHeader& header,
      std::span<const ByteSpan> places);
  // Sends the last frame of all, regardless of room.
  void putLast(const MessageHeader& header);
  // Sends kept bytes. Returns true if bytes have gone out, or if sending has
  // failed just now.
  bool flush();
  size_t unsent() const {
    return outgoing_.size() - sent_;
  }
  // Returns true if the socket took only a part of the last write; ReadySet
  // tells as news when the socket takes more.
  bool full() const {
    return full_;
  }
  // Bytes received so far.
  uint64_t received() const {
    return received_;
  }
  // Returns true once the peer's host has received all bytes put, or if sending
  // has failed.
  bool allSent() const;
  void dropUnsent();
  // Drops unsent bytes, and limits how long sent bytes may stay unanswered,
  // because the peer or its host is gone.
  void expectEnd();

  // Reads once from the socket. Returns false if nothing has come.
  bool fill();
  // Returns the frame under way, with the beginning of its payload, if a large
  // part of the payload is still to come.
  std::optional<Frame> begun() const;
  // Reads once, as fill() does, and puts the rest of the frame from begun()
  // into the places; pass the placement anew for each part. If the places do
  // not fit the frame, a first part is read like any other frame, and a later
  // part is dropped with Fault::kGone.
  bool fillInto(const Placement& placement);
  // Returns the next complete frame; nothing if fill() must be called first.
  std::optional<Frame> next();

  // Returns why nothing more is sent or received; ok while the stream works.
  const Status& broken() const {
    return broken_;
  }

 private:
  // Frame being read into places.
  struct Placing {
    MessageHeader header;
    size_t size = 0; // bytes of the payload
    size_t done = 0; // bytes of the payload received
    bool byCopy = false; // the kernel could not write to the places
    Fault fault = Fault::kNone;
  };
  size_t write(iovec* parts, size_t count, bool mayFault = false);
  void keep(ByteSpan bytes);
  Fault keepGathered(std::span<const ByteSpan> places, size_t skipped);
  bool lost() const {
    return !broken_.ok() || !unsendable_.ok();
  }
  void stopSending(int error) noexcept;
  void breakWith(ErrorCode code, const std::string& what) noexcept;

  // frame_stream_in.cpp defines the functions from receive() to placedFrame().
  bool receive(iovec* parts, size_t count, size_t& got);
  std::optional<MessageHeader> headerAt() const;
  bool startPlacing(const Placement& placement);
  bool fillRest(const Placement& placement);
  bool copyRest(const Placement& placement);
  void copyOn(const Placement& placement, ByteSpan bytes);
  std::vector<std::span<std::byte>> restOf(
      const Placement& placement,
      size_t size) const;
  std::optional<Frame> placedFrame();

  const UnforkedFd fd_;
  Bytes outgoing_; // bytes before sent_ have gone out
  size_t sent_ = 0;
  bool full_ = false;
  Bytes incoming_; // bytes from begin_ to end_ wait for next()
  size_t begin_ = 0, end_ = 0;
  uint64_t received_ = 0;
  std::optional<Placing> placing_;
  Bytes before_; // payload of placing_ before the places
  Status unsendable_; // why nothing more is sent; ok while sending works
  Status broken_;
};

} // namespace dlslime::tcp
