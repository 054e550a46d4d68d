// What comes on a peer's socket: frames of a header and a payload, in any
// portions.
#include "tcp/frame_stream.h"

#include <fcntl.h>
#include <sys/socket.h>

#include "descriptors.h"

namespace dlslime::fuzz {
namespace {

constexpr size_t kMost = tcp::FrameStream::kMostPayloadBytes;

// All bytes that come, and how far they were delivered.
class Expected {
 public:
  void add(ByteSpan bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  // The next frame, if all of it is there.
  std::optional<Bytes> next() {
    const auto rest = ByteSpan(bytes_).subspan(read_);
    MessageHeader header;
    if (rest.size() < sizeof(header)) {
      return std::nullopt;
    }
    copyBytes(&header, rest.data(), sizeof(header));
    tooLong_ = header.payloadSize > kMost;
    const auto size = sizeof(header) + header.payloadSize;
    if (tooLong_ || rest.size() < size) {
      return std::nullopt;
    }
    read_ += size;
    return copyOf(rest.first(size));
  }
  bool tooLong() const {
    return tooLong_;
  }

 private:
  Bytes bytes_;
  size_t read_ = 0;
  bool tooLong_ = false; // what comes next
};

Bytes whole(const tcp::Frame& frame) {
  auto bytes = copyOf(std::as_bytes(std::span(&frame.header, 1)));
  bytes.insert(bytes.end(), frame.payload.begin(), frame.payload.end());
  return bytes;
}

// Takes what has come.
void take(tcp::FrameStream& stream, Expected& expected) {
  do {
    while (const auto frame = stream.next()) {
      const auto next = expected.next();
      require(next && *next == whole(*frame), "a frame is what was sent");
    }
  } while (stream.fill());
}

void checkEnd(tcp::FrameStream& stream, Expected& expected) {
  take(stream, expected);
  require(!expected.next(), "all frames were delivered");
  require(!stream.broken().ok(), "the end is told");
  const bool announced =
      stream.broken().message().find("announces") != std::string::npos;
  require(announced == expected.tooLong(), "too much is told, and only that");
  requirePlain(stream.broken().message());
}

// Frames whose payloads are longer than an input are made of fewer bytes.
Bytes madeFrame(Input& input) {
  MessageHeader header;
  const auto head = input.upTo(sizeof(header) - sizeof(header.payloadSize));
  copyBytes(&header, head.data(), head.size());
  header.payloadSize = static_cast<uint32_t>(input.below(kMost + 2));
  auto frame = copyOf(std::as_bytes(std::span(&header, 1)));
  frame.resize(
      frame.size() + std::min<size_t>(header.payloadSize, kMost),
      input.number<std::byte>());
  return frame;
}

// The bytes of one step, as they are sent.
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
  tcp::FrameStream stream({UniqueFd(ends[0]), early});
  while (input.more()) {
    const auto bytes = step(input);
    // Not too many for one input.
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
        take(stream, expected);
      }
    }
  }
  writer.reset();
  checkEnd(stream, expected);
}

} // namespace
} // namespace dlslime::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  dlslime::fuzz::run({data, size});
  return 0;
}
