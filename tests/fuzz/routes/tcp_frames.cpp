// Bytes on a peer's socket: frames of a header and a payload, in any portions,
// some read straight into memory.
#include "transports/tcp/frame_stream.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>

#include "descriptors.h"

namespace dlslime::fuzz {
namespace {

constexpr size_t kMost = tcp::FrameStream::kMostPayloadBytes;

// All bytes that have come, and the number delivered.
class Expected {
 public:
  void add(ByteSpan bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  // Returns the next frame if complete.
  std::optional<Bytes> next() {
    for (;;) {
      const auto rest = ByteSpan(bytes_).subspan(read_);
      MessageHeader header;
      if (rest.size() < sizeof(header)) {
        return std::nullopt;
      }
      copyBytes(&header, rest.data(), sizeof(header));
      const size_t verdict = header.payloadSize >> 31 != 0 ? 4 : 0;
      header.payloadSize &= ~(uint32_t{1} << 31);
      tooLong_ = header.payloadSize > kMost;
      const auto size = sizeof(header) + header.payloadSize;
      if (tooLong_ || rest.size() < size + verdict) {
        return std::nullopt;
      }
      read_ += size + verdict;
      const auto told = rest.subspan(size, verdict);
      if (std::all_of(told.begin(), told.end(), [](std::byte byte) {
            return byte == std::byte{0};
          })) {
        auto frame = copyOf(rest.first(size));
        copyBytes(frame.data(), &header, sizeof(header));
        return frame;
      }
    }
  }
  bool tooLong() const {
    return tooLong_;
  }

 private:
  Bytes bytes_;
  size_t read_ = 0;
  bool tooLong_ = false; // about the next frame
};

// Takes frames, and places every second large frame, in so many parts.
class Taker {
 public:
  explicit Taker(Input& input) : parts_(input.below(5)) {}

  // Takes all frames that have come.
  void take(tcp::FrameStream& stream, Expected& expected) {
    do {
      while (const auto frame = stream.next()) {
        const auto next = expected.next();
        require(next && *next == whole(*frame), "a frame is what was sent");
        ++frames_;
      }
    } while (fill(stream));
  }

 private:
  bool fill(tcp::FrameStream& stream) {
    const auto begun = stream.begun();
    if (!begun || parts_ == 0 || frames_ % 2 == 0) {
      return begun ? stream.fillInto({}) : stream.fill();
    }
    memory_.resize(begun->header.payloadSize);
    Placement placement{std::min<size_t>(frames_, begun->payload.size()), {}};
    const auto places = std::span(memory_).subspan(placement.from);
    const size_t each = places.size() / parts_ + 1;
    for (size_t at = 0; at < places.size(); at += each) {
      placement.places.push_back(
          places.subspan(at, std::min(each, places.size() - at)));
    }
    return stream.fillInto(placement);
  }
  Bytes whole(const tcp::Frame& frame) {
    auto bytes = copyOf(std::as_bytes(std::span(&frame.header, 1)));
    bytes.insert(bytes.end(), frame.payload.begin(), frame.payload.end());
    if (frame.placed) {
      require(frame.fault == Fault::kNone, "there was no fault");
      const auto rest = std::span(memory_).subspan(frame.payload.size());
      bytes.insert(bytes.end(), rest.begin(), rest.end());
    }
    return bytes;
  }

  const size_t parts_;
  size_t frames_ = 0;
  Bytes memory_;
};

void checkEnd(Taker& taker, tcp::FrameStream& stream, Expected& expected) {
  taker.take(stream, expected);
  require(!expected.next(), "all frames were delivered");
  require(!stream.broken().ok(), "the end is told");
  const bool announced =
      stream.broken().message().find("announces") != std::string::npos;
  require(announced == expected.tooLong(), "too much is told, and only that");
  requirePlain(stream.broken().message());
}

// Makes a frame longer than an input from a few bytes.
Bytes madeFrame(Input& input) {
  MessageHeader header;
  const auto head = input.upTo(sizeof(header) - sizeof(header.payloadSize));
  copyBytes(&header, head.data(), head.size());
  const auto size = static_cast<uint32_t>(input.below(kMost + 2));
  const bool verdict = input.oneIn(2);
  header.payloadSize = size | (verdict ? uint32_t{1} << 31 : 0);
  auto frame = copyOf(std::as_bytes(std::span(&header, 1)));
  frame.resize(
      frame.size() + std::min<size_t>(size, kMost), input.number<std::byte>());
  if (verdict) {
    frame.resize(frame.size() + 4, std::byte(input.oneIn(4) ? 1 : 0));
  }
  return frame;
}

// Returns the bytes to send in a step.
Bytes step(Input& input) {
  return input.oneIn(4) ? madeFrame(input) : copyOf(input.blob());
}

void run(Input input) {
  const DescriptorsKept kept;
  int ends[2];
  require(
      socketpair(
          AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0,
      "there are sockets");
  UniqueFd writer(ends[1]);
  Expected expected;
  const auto early = copyOf(input.blob());
  expected.add(early);
  Taker taker(input);
  tcp::FrameStream stream({UniqueFd(ends[0]), early});
  while (input.more()) {
    const auto bytes = step(input);
    // Not too many portions for an input.
    const size_t portion = 1 + bytes.size() / 100 + input.below(40000);
    for (size_t at = 0; at < bytes.size() && stream.broken().ok();) {
      const auto part = ByteSpan(bytes).subspan(at).first(
          std::min(portion, bytes.size() - at));
      const auto put =
          send(writer.get(), part.data(), part.size(), MSG_NOSIGNAL);
      if (put > 0) {
        expected.add(part.first(static_cast<size_t>(put)));
        at += static_cast<size_t>(put);
      }
      if (put <= 0 || input.oneIn(2)) {
        taker.take(stream, expected);
      }
    }
  }
  writer.reset();
  checkEnd(taker, stream, expected);
}

} // namespace
} // namespace dlslime::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  dlslime::fuzz::run({data, size});
  return 0;
}
