#pragma once

#include <sys/uio.h>

#include <optional>

#include "core/fork_guard.h"
#include "core/memory.h"
#include "core/message.h"
#include "core/side_socket.h"
#include "core/status.h"

namespace dlslime::tcp {

struct Frame {
  MessageHeader header;
  ByteSpan payload; // until the next fill()
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
  // The same, whether there is room or not: what is put last of all.
  void putLast(const MessageHeader& header);
  // True: something has gone out.
  bool flush();
  size_t unsent() const {
    return outgoing_.size() - sent_;
  }
  // The peer's host has all that was put.
  bool allSent() const;
  void dropUnsent();

  // Reads once. False: nothing has come.
  bool fill();
  // The next whole frame. Empty: fill() first.
  std::optional<Frame> next();

  // Nothing more is sent or received, because.
  const Status& broken() const {
    return broken_;
  }

 private:
  size_t write(iovec* parts, size_t count);
  void keep(ByteSpan bytes);
  bool lost() const {
    return !broken_.ok() || !unsendable_.ok();
  }
  void stopSending(int error) noexcept;
  void breakWith(ErrorCode code, const std::string& what) noexcept;

  const UnforkedFd fd_;
  Bytes outgoing_; // those before sent_ have gone out
  size_t sent_ = 0;
  Bytes incoming_; // from begin_ to end_ have come, and were not given out
  size_t begin_ = 0, end_ = 0;
  Status unsendable_; // nothing goes out any more, because
  Status broken_;
};

} // namespace dlslime::tcp
