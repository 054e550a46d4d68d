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
  ByteSpan payload; // until the next fill(); if placed, what was before that
  bool placed = false; // fillInto() has taken the rest,
  Fault fault = Fault::kNone; // unless it could not
};

// Messages over a stream socket that does not block: a header, and as many
// bytes as it says. What the socket does not take waits in a buffer of a fixed
// size. One thread at a time.
class FrameStream {
 public:
  static constexpr size_t kMostPayloadBytes = 128 * 1024;

  explicit FrameStream(SideSocket socket);

  int fd() const {
    return fd_.get();
  }
  // False: no room now; try again after a flush(). `wait`: what follows may go
  // out with it, at the next flush().
  [[nodiscard]] bool
  put(const MessageHeader& header, ByteSpan payload, bool wait);
  // The same, where nothing is unsent, of bytes that need not be readable: the
  // fault, and then the other end takes what went out for no frame.
  Fault putGathered(
      const MessageHeader& header,
      std::span<const ByteSpan> places);
  // The same, whether there is room or not: what is put last of all.
  void putLast(const MessageHeader& header);
  // True: something has gone out.
  bool flush();
  size_t unsent() const {
    return outgoing_.size() - sent_;
  }
  // The socket has not taken all that it was given: it will be told as news
  // when it takes more.
  bool full() const {
    return full_;
  }
  // Bytes, in all.
  uint64_t received() const {
    return received_;
  }
  // The peer's host has all that was put.
  bool allSent() const;
  void dropUnsent();
  // The peer is gone, or its host: what was sent is waited for no longer.
  void expectEnd();

  // Reads once. False: nothing has come.
  bool fill();
  // A frame of which much has yet to come, and the beginning of its payload.
  std::optional<Frame> begun() const;
  // fill(), and the rest of that frame into its places, which are to be given
  // again for each part of it. Of the first part also none: it is read as all
  // others. Of later ones: the rest is dropped, with Fault::kGone.
  bool fillInto(const Placement& placement);
  // The next whole frame. Empty: fill() first.
  std::optional<Frame> next();

  // Nothing more is sent or received, because.
  const Status& broken() const {
    return broken_;
  }

 private:
  // A frame that goes to its places.
  struct Placing {
    MessageHeader header;
    size_t size = 0; // of its payload, of which
    size_t done = 0; // have come
    bool byCopy = false; // the kernel can't write there
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

  // frame_stream_in.cpp
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
  Bytes outgoing_; // those before sent_ have gone out
  size_t sent_ = 0;
  bool full_ = false;
  Bytes incoming_; // from begin_ to end_ have come, and were not given out
  size_t begin_ = 0, end_ = 0;
  uint64_t received_ = 0;
  std::optional<Placing> placing_;
  Bytes before_; // its places
  Status unsendable_; // nothing goes out any more, because
  Status broken_;
};

} // namespace dlslime::tcp
