#pragma once

#include <sys/uio.h>

#include <span>
#include <vector>

#include "base/memory/fault.h"
#include "base/status.h"
#include "interface/bulk_payload.h"
#include "interface/memory.h"
#include "interface/message.h"

namespace dlslime::tcp {

// The sending half of a FrameStream. Bytes not yet taken by the socket wait in
// a buffer of fixed size.
class FrameWriter {
 public:
  explicit FrameWriter(int fd);

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
  // Returns true once the peer's host has received all bytes put, or if sending
  // has failed.
  bool allSent() const;
  void dropUnsent();
  // Drops unsent bytes, and limits how long sent bytes may stay unanswered,
  // because the peer or its host is gone.
  void expectEnd();
  // Sends nothing any more, because the stream has ended.
  void stop() noexcept;
  // Returns why nothing more can be sent; ok while sending works.
  const Status& failure() const {
    return failure_;
  }

 private:
  size_t write(iovec* parts, size_t count, bool mayFault = false);
  void keep(ByteSpan bytes);
  Fault keepGathered(std::span<const ByteSpan> places, size_t skipped);
  bool lost() const {
    return stopped_ || !failure_.ok();
  }
  void fail(int error) noexcept;

  const int fd_;
  Bytes outgoing_; // bytes before sent_ have gone out
  size_t sent_ = 0;
  bool full_ = false;
  bool stopped_ = false;
  Status failure_;
};

} // namespace dlslime::tcp
