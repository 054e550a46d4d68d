#pragma once

#include <sys/uio.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "interface/bulk_payload.h"
#include "interface/memory.h"
#include "interface/message.h"

namespace dlslime::tcp {

struct Frame {
  MessageHeader header;
  // Valid until the next fill(). Of a placed frame: the part of the payload
  // before the places.
  ByteSpan payload;
  bool placed = false; // fillInto() has read the rest of the payload
  Fault fault = Fault::kNone; // why a placed rest is incomplete
};

// The receiving half of a FrameStream: frames read whole, and frames whose
// payload goes straight to its places.
class FrameReader {
 public:
  // `early`: bytes read from the socket already.
  FrameReader(int fd, ByteSpan early);

  // Bytes received so far.
  uint64_t received() const {
    return received_;
  }
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

  // Returns why nothing more is received; ok while the stream works.
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
  void breakWith(ErrorCode code, const std::string& what) noexcept;
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

  const int fd_;
  Bytes incoming_; // bytes from begin_ to end_ wait for next()
  size_t begin_ = 0, end_ = 0;
  uint64_t received_ = 0;
  std::optional<Placing> placing_;
  Bytes before_; // payload of placing_ before the places
  Status broken_;
};

} // namespace dlslime::tcp
