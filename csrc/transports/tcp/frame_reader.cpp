#include "transports/tcp/frame_reader.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/memory/guarded_copy.h"
#include "transports/tcp/frame_format.h"

namespace dlslime::tcp {

namespace {
// Smallest rest of a payload to be placed, in bytes; a smaller rest is read
// together with the bytes behind.
constexpr size_t kLeastPlaced = 16 * 1024;
// Bytes read behind a placed frame: its verdict, and the next header, which
// tells whether the next frame will be placed.
constexpr size_t kBehind = sizeof(kGood) + sizeof(MessageHeader);

size_t sizeOf(const MessageHeader& header) {
  return header.payloadSize & ~kVerdictFollows;
}

size_t verdictOf(const MessageHeader& header) {
  return (header.payloadSize & kVerdictFollows) != 0 ? sizeof(kGood) : 0;
}

bool isVoid(const MessageHeader& header, const std::byte* verdict) {
  uint32_t found = kGood;
  std::memcpy(&found, verdict, verdictOf(header));
  return found != kGood;
}

// Returns true if the placement fits a payload of `size` bytes.
bool holds(const Placement& placement, size_t size) {
  size_t bytes = placement.from;
  for (const auto& place : placement.places) {
    bytes += place.size();
  }
  return !placement.places.empty() && placement.places.size() <= kMostPlaces &&
      bytes == size;
}

MessageHeader plain(MessageHeader header) {
  header.payloadSize &= ~kVerdictFollows;
  return header;
}
} // namespace

FrameReader::FrameReader(int fd, ByteSpan early) : fd_(fd) {
  // Reserves all buffers now, so that reading whole frames allocates no memory
  // later.
  incoming_.resize(std::max(kIncomingBytes, early.size()));
  before_.reserve(kMostBefore);
  std::copy(early.begin(), early.end(), incoming_.begin());
  end_ = early.size();
}

void FrameReader::breakWith(ErrorCode code, const std::string& what) noexcept {
  if (broken_.ok()) {
    broken_ = inWords([&] { return Status(code, "TCP: " + what); });
  }
}

// Reads once and sets `got` to the number of bytes. Returns false if nothing
// has come; true also if placing must go on by copies.
bool FrameReader::receive(iovec* parts, size_t count, size_t& got) {
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = count;
  const auto received = recvmsg(fd_, &message, MSG_DONTWAIT);
  got = static_cast<size_t>(std::max<ssize_t>(received, 0));
  received_ += got;
  if (received == 0) {
    breakWith(
        ErrorCode::kPeerFailed, "the other end has closed the connection");
  } else if (received < 0 && errno == EFAULT && placing_) {
    placing_->byCopy = true; // a guarded copy will tell the fault
    return true;
  } else if (received < 0 && !wouldBlock(errno)) {
    breakWith(
        codeOf(errno), std::string("cannot receive: ") + std::strerror(errno));
  }
  return received > 0;
}

bool FrameReader::fill() {
  if (!broken_.ok()) {
    return false;
  }
  if (begin_ == end_ || incoming_.size() - end_ < kMostFrameBytes) {
    std::memmove(incoming_.data(), incoming_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  iovec part{incoming_.data() + end_, incoming_.size() - end_};
  size_t got = 0;
  const bool any = receive(&part, 1, got);
  end_ += got;
  return any;
}

std::optional<MessageHeader> FrameReader::headerAt() const {
  if (end_ - begin_ < sizeof(MessageHeader)) {
    return std::nullopt;
  }
  MessageHeader header;
  std::memcpy(&header, incoming_.data() + begin_, sizeof(header));
  return header;
}

std::optional<Frame> FrameReader::begun() const {
  if (placing_) {
    return placing_->done < placing_->size
        ? std::optional(Frame{plain(placing_->header), before_})
        : std::nullopt;
  }
  const auto header = headerAt();
  if (!header || !broken_.ok()) {
    return std::nullopt;
  }
  const auto there = ByteSpan(incoming_).subspan(
      begin_ + sizeof(*header), end_ - begin_ - sizeof(*header));
  if (there.size() + kLeastPlaced > sizeOf(*header)) {
    return std::nullopt;
  }
  return Frame{plain(*header), there};
}

bool FrameReader::fillInto(const Placement& placement) {
  if (!placing_ && !startPlacing(placement)) {
    return fill();
  }
  if (!holds(placement, placing_->size) && placing_->fault == Fault::kNone) {
    placing_->fault = Fault::kGone;
  }
  return placing_->byCopy || placing_->fault != Fault::kNone
      ? copyRest(placement)
      : fillRest(placement);
}

// Begins to place the frame under way. Returns false if the frame has to be
// read whole instead.
bool FrameReader::startPlacing(const Placement& placement) {
  const auto frame = begun();
  if (!frame || !holds(placement, frame->header.payloadSize) ||
      placement.from > std::min(frame->payload.size(), kMostBefore)) {
    return false;
  }
  const auto bytes = frame->payload;
  before_.assign(bytes.begin(), bytes.begin() + placement.from);
  placing_ = Placing{*headerAt(), frame->header.payloadSize, placement.from};
  begin_ = end_ = 0;
  copyOn(placement, bytes.subspan(placement.from));
  return true;
}

// Reads from the socket straight into the places.
bool FrameReader::fillRest(const Placement& placement) {
  const size_t rest = placing_->size - placing_->done;
  std::array<iovec, kMostPlaces + 1> parts{};
  size_t count = 0;
  for (const auto& place : restOf(placement, rest)) {
    parts[count++] = {place.data(), place.size()};
  }
  parts[count++] = {incoming_.data(), kBehind};
  size_t got = 0;
  const bool any = receive(parts.data(), count, got);
  placing_->done += std::min(got, rest);
  end_ = got - std::min(got, rest);
  return any;
}

// Reads into the incoming buffer, and copies from there into the places.
bool FrameReader::copyRest(const Placement& placement) {
  const size_t rest = placing_->size - placing_->done;
  iovec part{incoming_.data(), std::min(rest, incoming_.size())};
  size_t got = 0;
  const bool any = receive(&part, 1, got);
  copyOn(placement, ByteSpan(incoming_).first(got));
  return any;
}

void FrameReader::copyOn(const Placement& placement, ByteSpan bytes) {
  if (placing_->fault == Fault::kNone && !bytes.empty()) {
    placing_->fault = scatterGuarded(bytes, restOf(placement, bytes.size()));
  }
  placing_->done += bytes.size();
}

// Returns the places of the next `size` bytes of the payload.
std::vector<std::span<std::byte>> FrameReader::restOf(
    const Placement& placement,
    size_t size) const {
  std::vector<std::span<std::byte>> places;
  size_t skipped = placing_->done - placement.from;
  for (const auto& place : placement.places) {
    const auto skip = std::min(skipped, place.size());
    skipped -= skip;
    const auto taken = std::min(place.size() - skip, size);
    size -= taken;
    if (taken > 0) {
      places.push_back(place.subspan(skip, taken));
    }
  }
  return places;
}

std::optional<Frame> FrameReader::placedFrame() {
  const auto& placing = *placing_;
  const size_t verdict = verdictOf(placing.header);
  if (placing.done < placing.size || end_ - begin_ < verdict) {
    return std::nullopt;
  }
  const bool none = isVoid(placing.header, incoming_.data() + begin_);
  begin_ += verdict;
  Frame frame{plain(placing.header), before_, true, placing.fault};
  placing_.reset();
  return none ? next() : frame;
}

std::optional<Frame> FrameReader::next() {
  if (placing_) {
    return placedFrame();
  }
  while (const auto header = headerAt()) {
    const size_t size = sizeOf(*header);
    if (size > kMostFramePayload) {
      breakWith(
          ErrorCode::kTransportFailed,
          "a frame announces " + std::to_string(size) + " bytes, more than " +
              std::to_string(kMostFramePayload));
      begin_ = end_;
      return std::nullopt;
    }
    const size_t verdict = verdictOf(*header);
    if (end_ - begin_ < sizeof(*header) + size + verdict) {
      return std::nullopt;
    }
    const auto payload =
        ByteSpan(incoming_).subspan(begin_ + sizeof(*header), size);
    begin_ += sizeof(*header) + size + verdict;
    if (!isVoid(*header, payload.data() + size)) {
      return Frame{plain(*header), payload};
    }
  }
  return std::nullopt;
}

} // namespace dlslime::tcp
