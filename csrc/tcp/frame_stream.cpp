#include "tcp/frame_stream.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace dlslime::tcp {

namespace {

constexpr size_t kMostFrameBytes =
    sizeof(MessageHeader) + FrameStream::kMostPayloadBytes;
// Messages that go out together, or wait for the socket.
constexpr size_t kMostKeptBytes = 2 * kMostFrameBytes;
constexpr size_t kIncomingBytes = 4 * kMostFrameBytes;

ByteSpan bytesOf(const MessageHeader& header) {
  return std::as_bytes(std::span(&header, 1));
}

iovec partOf(ByteSpan bytes) {
  return {const_cast<std::byte*>(bytes.data()), bytes.size()};
}

Status broke(ErrorCode code, const std::string& what) noexcept {
  return inWords([&] { return Status(code, "TCP: " + what); });
}

// The other end does not close it while both work.
ErrorCode codeOf(int error) {
  return error == ECONNRESET || error == EPIPE ? ErrorCode::kPeerFailed
                                               : ErrorCode::kTransportFailed;
}

bool wouldBlock(int error) {
  return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

} // namespace

FrameStream::FrameStream(SideSocket socket) : fd_(std::move(socket.fd)) {
  // Sending and receiving take no memory from now on.
  outgoing_.reserve(kMostKeptBytes + kMostFrameBytes + sizeof(MessageHeader));
  incoming_.resize(std::max(kIncomingBytes, socket.early.size()));
  std::copy(socket.early.begin(), socket.early.end(), incoming_.begin());
  end_ = socket.early.size();
}

void FrameStream::breakWith(ErrorCode code, const std::string& what) noexcept {
  if (broken_.ok()) {
    broken_ = unsendable_.ok() ? broke(code, what) : unsendable_;
    dropUnsent();
  }
}

// What has come may still be read, up to the end that this makes.
void FrameStream::stopSending(int error) noexcept {
  unsendable_ = inWords([&] {
    return broke(
        codeOf(error), std::string("cannot send: ") + std::strerror(error));
  });
  dropUnsent();
  shutdown(fd_.get(), SHUT_RDWR);
}

// How many bytes the socket has taken.
size_t FrameStream::write(iovec* parts, size_t count) {
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = count;
  const auto written =
      sendmsg(fd_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (written >= 0) {
    return static_cast<size_t>(written);
  }
  if (!wouldBlock(errno)) {
    stopSending(errno);
  }
  return 0;
}

void FrameStream::keep(ByteSpan bytes) {
  outgoing_.insert(outgoing_.end(), bytes.begin(), bytes.end());
}

bool FrameStream::put(
    const MessageHeader& header,
    ByteSpan payload,
    bool wait) {
  if (lost()) {
    return true; // as all that is on its way
  }
  auto framed = header;
  framed.payloadSize = static_cast<uint32_t>(payload.size());
  const auto head = bytesOf(framed);
  const size_t size = head.size() + payload.size();
  size_t written = 0;
  if (!wait) {
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

void FrameStream::putLast(const MessageHeader& header) {
  if (!lost()) {
    keep(bytesOf(header));
    flush();
  }
}

bool FrameStream::flush() {
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

void FrameStream::dropUnsent() {
  outgoing_.clear();
  sent_ = 0;
}

bool FrameStream::allSent() const {
  if (lost()) {
    return true;
  }
  int waiting = 0;
  return unsent() == 0 &&
      (ioctl(fd_.get(), SIOCOUTQ, &waiting) != 0 || waiting == 0);
}

bool FrameStream::fill() {
  if (!broken_.ok()) {
    return false;
  }
  if (begin_ == end_ || incoming_.size() - end_ < kMostFrameBytes) {
    std::memmove(incoming_.data(), incoming_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  const auto got = recv(
      fd_.get(),
      incoming_.data() + end_,
      incoming_.size() - end_,
      MSG_DONTWAIT);
  if (got > 0) {
    end_ += static_cast<size_t>(got);
    return true;
  }
  if (got == 0) {
    breakWith(
        ErrorCode::kPeerFailed, "the other end has closed the connection");
  } else if (!wouldBlock(errno)) {
    breakWith(
        codeOf(errno), std::string("cannot receive: ") + std::strerror(errno));
  }
  return false;
}

std::optional<Frame> FrameStream::next() {
  const size_t there = end_ - begin_;
  if (there < sizeof(MessageHeader)) {
    return std::nullopt;
  }
  Frame frame;
  std::memcpy(&frame.header, incoming_.data() + begin_, sizeof(MessageHeader));
  const size_t size = frame.header.payloadSize;
  if (size > kMostPayloadBytes) {
    breakWith(
        ErrorCode::kTransportFailed,
        "a frame announces " + std::to_string(size) + " bytes, more than " +
            std::to_string(kMostPayloadBytes));
    begin_ = end_;
    return std::nullopt;
  }
  if (there - sizeof(MessageHeader) < size) {
    return std::nullopt;
  }
  frame.payload =
      ByteSpan(incoming_).subspan(begin_ + sizeof(MessageHeader), size);
  begin_ += sizeof(MessageHeader) + size;
  return frame;
}

} // namespace dlslime::tcp
