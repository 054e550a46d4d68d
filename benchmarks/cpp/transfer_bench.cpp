// Reads of blocks between two processes by the engine alone, without torch and
// Python: the original's transfer_bench, with its flags, over an endpoint of
// dlslime. The target listens at the given endpoint for the initiator:
//
//   cmake -S tests/cpp -B build/cpp-plain -DSANITIZE=none
//   cmake --build build/cpp-plain --target dlslime_transfer_bench
//   BENCH=build/cpp-plain/dlslime_transfer_bench
//   $BENCH --mode target --target_endpoint 10.0.0.1:6006
//   $BENCH --mode initiator --target_endpoint 10.0.0.1:6006
//
// Defaults: --block_size 2048000 --batch_size 160 --concurrent_num 20
// --duration 10 (seconds).
//
// A trip is a batch. Blocks are read in reverse order, so that no two are
// merged, and the bytes are checked in the end. Exit status: 0, or 1 if bytes
// were wrong or a transfer failed, or 2 for a bad command line.
#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <vector>

#include "base/bytes.h"
#include "engine/endpoint.h"
#include "engine/one_sided/transfer.h"

namespace dlslime {
namespace {

constexpr double kMebibyte = 1 << 20;
constexpr milliseconds kLimit{60000};

[[noreturn]] void refuse(const std::string& what) {
  std::fprintf(stderr, "transfer_bench: %s\n", what.c_str());
  std::exit(2);
}

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "transfer_bench: %s\n", what.c_str());
  std::exit(1);
}

struct Asked {
  std::map<std::string, std::string> values{
      {"mode", ""},
      {"device_name", ""}, // a hint, unused, as the next two
      {"ib_port", "1"},
      {"link_type", "RoCE"},
      {"initiator_endpoint", ""}, // unused: the target only listens
      {"target_endpoint", "127.0.0.1:6006"},
      {"buffer_size", "0"},
      {"block_size", "2048000"},
      {"batch_size", "160"},
      {"concurrent_num", "20"},
      {"duration", "10"}};

  Asked(int count, char** words) {
    for (int i = 1; i < count; ++i) {
      std::string name = words[i];
      const auto equals = name.find('=');
      std::string value = equals == std::string::npos
          ? (i + 1 < count ? words[++i] : "")
          : name.substr(equals + 1);
      name = name.substr(0, equals);
      if (name.rfind("--", 0) != 0 || !values.contains(name.substr(2))) {
        refuse("there is no flag " + name);
      }
      values[name.substr(2)] = value;
    }
    if (const auto mode = values["mode"];
        mode != "target" && mode != "initiator") {
      refuse("--mode is target or initiator, not \"" + mode + "\"");
    }
  }
  size_t number(const std::string& name) const {
    const auto& text = values.at(name);
    char* end = nullptr;
    const auto found = std::strtoull(text.c_str(), &end, 10);
    if (text.empty() || *end != '\0' || text[0] == '-') {
      refuse("--" + name + " is a number, not \"" + text + "\"");
    }
    return found;
  }
  size_t positive(const std::string& name) const {
    const auto found = number(name);
    if (found == 0) {
      refuse("--" + name + " is at least 1");
    }
    return found;
  }
};

// The socket over which both ends exchange the data for their endpoints.
class Line {
 public:
  Line(const std::string& endpoint, bool listens) {
    const auto colon = endpoint.rfind(':');
    addrinfo* found = nullptr;
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    if (colon == std::string::npos ||
        getaddrinfo(
            endpoint.substr(0, colon).c_str(),
            endpoint.c_str() + colon + 1,
            &hints,
            &found) != 0) {
      refuse("--target_endpoint is HOST:PORT, not \"" + endpoint + "\"");
    }
    fd_ = listens ? accepted(*found, endpoint) : connected(*found, endpoint);
    freeaddrinfo(found);
  }
  ~Line() {
    close(fd_);
  }
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;

  void tell(ByteSpan bytes) const {
    ByteWriter writer;
    writer.blob(bytes);
    const auto frame = writer.take();
    if (write(fd_, frame.data(), frame.size()) !=
        static_cast<ssize_t>(frame.size())) {
      fail("the other end has gone");
    }
  }
  Bytes hear() const {
    uint32_t size = 0; // as ByteWriter writes
    take(&size, sizeof(size));
    if (size > (1 << 20)) {
      fail("what answers there is no transfer_bench");
    }
    Bytes bytes(size);
    take(bytes.data(), bytes.size());
    return bytes;
  }

 private:
  static int accepted(const addrinfo& at, const std::string& endpoint) {
    const int listener = socket(at.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int on = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(listener, at.ai_addr, at.ai_addrlen) != 0 ||
        listen(listener, 1) != 0) {
      refuse("cannot listen at " + endpoint);
    }
    const int fd = accept(listener, nullptr, nullptr);
    close(listener);
    return fd;
  }
  static int connected(const addrinfo& at, const std::string& endpoint) {
    for (const auto end = deadlineAfter(kLimit); Clock::now() < end;) {
      const int fd = socket(at.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
      if (connect(fd, at.ai_addr, at.ai_addrlen) == 0) {
        return fd;
      }
      close(fd);
      usleep(100'000);
    }
    refuse("no process answers at " + endpoint);
  }
  void take(void* to, size_t size) const {
    for (size_t got = 0; got < size;) {
      const auto more = read(fd_, static_cast<char*>(to) + got, size - got);
      if (more <= 0) {
        fail("the other end has gone");
      }
      got += static_cast<size_t>(more);
    }
  }

  int fd_ = -1;
};

std::byte contentAt(size_t offset) {
  return static_cast<std::byte>((offset + offset / 4096 * 7) % 251);
}

// The process's memory and end of the pair.
class End {
 public:
  End(const Line& line, std::vector<std::byte>& memory)
      : engine_(std::make_shared<Engine>(Config::fromEnvironment())),
        endpoint_(engine_, options()) {
    const MemoryView view{memory.data(), memory.size(), nullptr};
    mine_ = engine_->registerMemory(view, "blocks", nullptr);
    line.tell(endpoint_.address());
    line.tell(encode(mine_->handle()));
    endpoint_.connect(line.hear());
    theirs_ = std::make_shared<const RegionHandle>(decodeRegion(line.hear()));
  }
  std::string route() {
    auto& group = *endpoint_.group();
    return engine_->explain(group, endpoint_.peer(), deadlineAfter(kLimit))
        .route;
  }
  // Reads every block into the mirrored block.
  TransferPtr read(size_t block, size_t blocks) {
    PieceBuilder pieces(*mine_, *theirs_, false, blocks);
    for (size_t i = 0; i < blocks; ++i) {
      pieces.add(
          static_cast<int64_t>((blocks - 1 - i) * block),
          static_cast<int64_t>(i * block),
          static_cast<int64_t>(block));
    }
    Transfer::Parts parts;
    parts.push_back({mine_, theirs_, pieces.take()});
    auto transfer = std::make_shared<Transfer>(
        Operation::Kind::kRead, endpoint_.peer(), std::move(parts));
    engine_->transfer(*endpoint_.group(), transfer);
    return transfer;
  }
  void finish(const Transfer& transfer) {
    if (!engine_->wait(transfer, kLimit)) {
      fail("a batch takes too long");
    }
    if (!transfer.status().ok()) {
      fail(transfer.status().message());
    }
  }

 private:
  static Endpoint::Options options() {
    Endpoint::Options options;
    options.name = "transfer_bench";
    const auto config = Config::fromEnvironment();
    options.route = config.route;
    options.fallback = config.fallback;
    return options;
  }

  std::shared_ptr<Engine> engine_;
  Endpoint endpoint_;
  RegionPtr mine_;
  std::shared_ptr<const RegionHandle> theirs_;
};

void requireRight(
    const std::vector<std::byte>& memory,
    size_t block,
    size_t blocks) {
  for (size_t i = 0; i < blocks; ++i) {
    for (size_t at = 0; at < block; ++at) {
      if (memory[(blocks - 1 - i) * block + at] != contentAt(i * block + at)) {
        fail("wrong bytes in block " + std::to_string(i));
      }
    }
  }
}

void initiate(const Asked& asked, const Line& line, End& end) {
  const size_t block = asked.positive("block_size");
  const size_t blocks = asked.positive("batch_size");
  const size_t most = asked.positive("concurrent_num");
  std::printf("route: %s\n", end.route().c_str());
  end.finish(*end.read(block, blocks));
  std::deque<TransferPtr> going;
  size_t trips = 0;
  const auto start = Clock::now();
  const auto stop = start + std::chrono::seconds(asked.positive("duration"));
  while (Clock::now() < stop || !going.empty()) {
    while (going.size() < most && Clock::now() < stop) {
      going.push_back(end.read(block, blocks));
    }
    if (!going.empty()) {
      end.finish(*going.front());
      going.pop_front();
      ++trips;
    }
  }
  const std::chrono::duration<double> took = Clock::now() - start;
  const auto moved = static_cast<double>(trips) *
      static_cast<double>(block * blocks) / kMebibyte;
  std::printf("Total trips: %zu\n", trips);
  std::printf("Total transferred: %.0f MiB\n", moved);
  std::printf(
      "Average Latency: %.3f ms\n",
      took.count() * 1e3 / static_cast<double>(std::max<size_t>(trips, 1)));
  std::printf("Throughput: %.1f MiB/s\n", moved / took.count());
  line.tell({});
}

int run(const Asked& asked) {
  const bool initiates = asked.values.at("mode") == "initiator";
  const size_t need =
      asked.positive("block_size") * asked.positive("batch_size");
  const size_t given = asked.number("buffer_size");
  if (given != 0 && given < need) {
    refuse("--buffer_size is less than --batch_size times --block_size");
  }
  std::vector<std::byte> memory(std::max(need, given));
  if (!initiates) {
    for (size_t at = 0; at < memory.size(); ++at) {
      memory[at] = contentAt(at);
    }
  }
  const Line line(asked.values.at("target_endpoint"), !initiates);
  End end(line, memory);
  if (!initiates) {
    line.hear(); // until the initiator is done
    return 0;
  }
  initiate(asked, line, end);
  requireRight(
      memory, asked.positive("block_size"), asked.positive("batch_size"));
  return 0;
}

} // namespace
} // namespace dlslime

int main(int argc, char** argv) {
  try {
    return dlslime::run(dlslime::Asked(argc, argv));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "transfer_bench: %s\n", error.what());
    return 1;
  }
}
