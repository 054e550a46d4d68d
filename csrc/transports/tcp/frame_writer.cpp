#include "transports/tcp/frame_writer.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/memory/guarded_copy.h"
#include "transports/tcp/frame_format.h"

namespace dlslime::tcp {

namespace {

// Most bytes kept: messages going out together, or waiting for the socket.
constexpr size_t kMostKeptBytes = 2 * kMostFrameBytes;
// Milliseconds that bytes sent to a peer that is gone may stay unacknowledged.
constexpr int kMostSilenceMs = 5000;

ByteSpan bytesOf(const MessageHeader& header) {
  return std::as_bytes(std::span(&header, 1));
}

iovec partOf(ByteSpan bytes) {
  return {const_cast<std::byte*>(bytes.data()), bytes.size()};
}

} // namespace

FrameWriter::FrameWriter(int fd) : fd_(fd) {
  // Reserved now, so that sending allocates no memory later.
  outgoing_.reserve(kMostKeptBytes + kMostFrameBytes + sizeof(MessageHeader));
}

void FrameWriter::stop() noexcept {
  stopped_ = true;
  dropUnsent();
}

// Shuts the socket down. Bytes received before may still be read, up to the end
// of the stream.
void FrameWriter::fail(int error) noexcept {
  failure_ = inWords([&] {
    return Status(
        codeOf(error),
        std::string("TCP: cannot send: ") + std::strerror(error));
  });
  dropUnsent();
  shutdown(fd_, SHUT_RDWR);
}

// Returns the number of bytes taken by the socket: fewer than given if the
// socket is full or, with `mayFault`, if memory is unreadable.
size_t FrameWriter::write(iovec* parts, size_t count, bool mayFault) {
  size_t size = 0;
  for (size_t i = 0; i < count; ++i) {
    size += parts[i].iov_len;
  }
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = count;
  const auto written = sendmsg(fd_, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  full_ = written < static_cast<ssize_t>(size);
  if (written >= 0) {
    return static_cast<size_t>(written);
  }
  if (!wouldBlock(errno) && !(mayFault && errno == EFAULT)) {
    fail(errno);
  }
  return 0;
}

void FrameWriter::keep(ByteSpan bytes) {
  outgoing_.insert(outgoing_.end(), bytes.begin(), bytes.end());
}

bool FrameWriter::put(
    const MessageHeader& header,
    ByteSpan payload,
    bool wait) {
  if (lost()) {
    return true; // dropped, like all bytes under way
  }
  auto framed = header;
  framed.payloadSize = static_cast<uint32_t>(payload.size());
  const auto head = bytesOf(framed);
  const size_t size = head.size() + payload.size();
  size_t written = 0;
  if (!wait && !full_) {
    flush();
    if (unsent() == 0 && !lost()) {
      std::array<iovec, 2> parts{partOf(head), partOf(payload)};
      written = write(parts.data(), parts.size());
    }
  }
  if (written == 0 && unsent() + size > kMostKeptBytes) {
    return lost();
  }
  if (written < size && !lost()) {
    const size_t ofHead = std::min(written, head.size());
    keep(head.subspan(ofHead));
    keep(payload.subspan(written - ofHead));
  }
  return true;
}

// The verdict follows the payload, because bytes promised by the header may
// turn out to be unreadable after a part of the frame has gone out.
Fault FrameWriter::putGathered(
    const MessageHeader& header,
    std::span<const ByteSpan> places) {
  if (lost()) {
    return Fault::kNone; // dropped, like all bytes under way
  }
  auto framed = header;
  std::array<iovec, kMostPlaces + 2> parts{};
  size_t size = 0;
  for (size_t i = 0; i < places.size(); ++i) {
    parts[i + 1] = partOf(places[i]);
    size += places[i].size();
  }
  framed.payloadSize = static_cast<uint32_t>(size) | kVerdictFollows;
  const auto head = bytesOf(framed);
  const auto good = std::as_bytes(std::span(&kGood, 1));
  parts[0] = partOf(head);
  parts[places.size() + 1] = partOf(good);
  const size_t whole = head.size() + size + good.size();
  const size_t written = write(parts.data(), places.size() + 2, true);
  if (lost() || written == whole) {
    return Fault::kNone;
  }
  const size_t ofHead = std::min(written, head.size());
  const size_t ofPlaces = std::min(written - ofHead, size);
  keep(head.subspan(ofHead));
  const auto fault = keepGathered(places, ofPlaces);
  if (fault != Fault::kNone && written == 0) {
    dropUnsent();
  } else {
    const auto verdict = fault == Fault::kNone ? kGood : kVoid;
    const auto bytes = std::as_bytes(std::span(&verdict, 1));
    keep(bytes.subspan(written - ofHead - ofPlaces));
    flush(); // memory, not the socket, may have ended the write
  }
  return fault;
}

// Keeps all but the first `skipped` bytes of the places; zeros stand for
// unreadable bytes.
Fault FrameWriter::keepGathered(
    std::span<const ByteSpan> places,
    size_t skipped) {
  std::array<ByteSpan, kMostPlaces> rest;
  size_t count = 0;
  size_t size = 0;
  for (const auto& place : places) {
    const auto skip = std::min(skipped, place.size());
    skipped -= skip;
    if (skip < place.size()) {
      rest[count++] = place.subspan(skip);
      size += place.size() - skip;
    }
  }
  const size_t at = outgoing_.size();
  outgoing_.resize(at + size);
  try {
    return gatherGuarded(std::span(rest).first(count), outgoing_.data() + at);
  } catch (const std::exception&) { // the frame must still be ended
    return Fault::kNoScratch;
  }
}

void FrameWriter::putLast(const MessageHeader& header) {
  if (!lost()) {
    keep(bytesOf(header));
    flush();
  }
}

void FrameWriter::expectEnd() {
  dropUnsent();
  setsockopt( // unix sockets need no time-out
      fd_,
      IPPROTO_TCP,
      TCP_USER_TIMEOUT,
      &kMostSilenceMs,
      sizeof(kMostSilenceMs));
}

bool FrameWriter::flush() {
  if (unsent() == 0 || lost()) {
    return false;
  }
  iovec part = partOf(ByteSpan(outgoing_).subspan(sent_));
  const size_t written = write(&part, 1);
  if (lost()) {
    return true;
  }
  sent_ += written;
  if (sent_ == outgoing_.size()) {
    dropUnsent();
  } else if (sent_ >= kMostFrameBytes) {
    outgoing_.erase(
        outgoing_.begin(), outgoing_.begin() + static_cast<ptrdiff_t>(sent_));
    sent_ = 0;
  }
  return written > 0;
}

void FrameWriter::dropUnsent() {
  outgoing_.clear();
  sent_ = 0;
  full_ = false;
}

bool FrameWriter::allSent() const {
  if (lost()) {
    return true;
  }
  int waiting = 0;
  return unsent() == 0 && (ioctl(fd_, SIOCOUTQ, &waiting) != 0 || waiting == 0);
}

} // namespace dlslime::tcp
