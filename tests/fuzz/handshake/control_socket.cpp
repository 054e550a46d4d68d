// Bytes and descriptors at a control socket: frames must come as sent.
#include "engine/bootstrap/control_socket.h"

#include <sys/socket.h>

#include "descriptors.h"
#include "engine/bootstrap/wire_records.h"
#include "fuzz.h"

namespace dlslime::fuzz {
namespace {

constexpr size_t kMostOnTheWay = 64 * 1024; // less than a socket has room for

// The sending end: the bytes sent, and the number read.
class Line {
 public:
  Line() {
    int ends[2];
    require(
        socketpair(
            AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0,
        "there are sockets");
    reader.emplace(UniqueFd(ends[0]));
    writer_ = UniqueFd(ends[1]);
  }
  void write(ByteSpan bytes) {
    if (sent_.size() - read_ + bytes.size() > kMostOnTheWay) {
      return;
    }
    const auto put =
        send(writer_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    sent_.insert(sent_.end(), bytes.begin(), bytes.begin() + std::max(put, 0L));
  }
  // Sends descriptors beside a byte.
  void writeDescriptors(size_t count) {
    std::vector<UniqueFd> fds;
    for (size_t i = 0; i < count; ++i) {
      fds.emplace_back(fcntl(writer_.get(), F_DUPFD_CLOEXEC, 0));
    }
    ControlSocket sender(UniqueFd(fcntl(writer_.get(), F_DUPFD_CLOEXEC, 0)));
    if (takes([&] { sender.sendDescriptors(fds); })) {
      sent_.push_back({});
    }
  }
  void close() {
    shutdown(writer_.get(), SHUT_WR);
  }
  // Returns whether a whole frame came.
  bool readFrame(size_t most) {
    const auto frame = reader->receiveFrame(most);
    if (!frame) {
      return false;
    }
    require(frame->size() <= most, "a frame is no longer than it may be");
    ByteReader expected(ByteSpan(sent_).subspan(read_));
    require(
        copyOf(expected.blob()) == *frame && expected.ok(),
        "a frame is what was sent");
    read_ += sizeof(uint32_t) + frame->size();
    return true;
  }
  void readDescriptors(size_t count) {
    const auto fds = reader->receiveDescriptors(count);
    require(!fds || fds->size() == count, "all that were asked for came");
    read_ += fds ? 1 : 0;
  }

  std::optional<ControlSocket> reader;

 private:
  UniqueFd writer_;
  Bytes sent_;
  size_t read_ = 0;
};

void step(Input& input, Line& line, bool& inFrame) {
  switch (input.below(8)) {
    case 0:
      line.writeDescriptors(1 + input.below(kMostDescriptors));
      return;
    case 1:
      line.close();
      return;
    case 2: // descriptors are read only between whole frames
      if (!inFrame) {
        line.readDescriptors(1 + input.below(kMostDescriptors));
      }
      return;
    case 3: {
      ByteWriter frame;
      frame.blob(input.blob());
      line.write(frame.take());
      return;
    }
    case 4:
      line.write(input.blob());
      return;
    default:
      inFrame = !line.readFrame(input.any<size_t>({0, 16, 1024, 65536}));
  }
}

void run(Input input) {
  const DescriptorsKept kept;
  Line line;
  bool inFrame = false;
  takes([&] {
    while (input.more()) {
      step(input, line, inFrame);
    }
  });
  line.reader->ended();
  line.reader->release();
}

} // namespace
} // namespace dlslime::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  dlslime::fuzz::run({data, size});
  return 0;
}
