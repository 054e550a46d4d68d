// Two processes without Python and without torch: a message of 1 MiB, and then
// a write into registered memory of the peer.
//
//   build/example-cpp/pair
//
// The processes exchange the addresses of their endpoints over a socket pair;
// any other way does as well.

#include <dlslime/engine/endpoint.h>

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <utility>

namespace {

constexpr size_t kBytes = 1 << 20;
constexpr dlslime::milliseconds kLimit{30'000};

using Buffer = std::shared_ptr<dlslime::Bytes>;

// A send or receive that keeps its memory: the engine may need the memory for
// longer than the caller keeps the operation.
class Message final : public dlslime::Operation {
 public:
  Message(Kind kind, int peer, Buffer memory)
      : Operation(kind, peer, /*tag=*/0, {memory->data(), memory->size()}),
        memory_(std::move(memory)) {}

 protected:
  void releaseMemory() override {
    memory_ = nullptr;
  }

 private:
  Buffer memory_;
};

// Sends bytes to the other process over the socket pair, and returns its bytes.
dlslime::Bytes trade(int socket, const dlslime::Bytes& own) {
  dlslime::Bytes theirs(64 << 10);
  if (send(socket, own.data(), own.size(), 0) < 0) {
    std::perror("send");
    std::exit(1);
  }
  const auto count = recv(socket, theirs.data(), theirs.size(), 0);
  theirs.resize(count > 0 ? static_cast<size_t>(count) : 0);
  return theirs;
}

void finish(dlslime::Endpoint& endpoint, const dlslime::Operation& operation) {
  if (!endpoint.engine()->wait(operation, kLimit)) {
    throw dlslime::Error(dlslime::ErrorCode::kTimeout, operation.describe());
  }
  if (!operation.status().ok()) {
    throw dlslime::Error(operation.status());
  }
}

bool isAll(const dlslime::Bytes& bytes, int value) {
  return std::all_of(bytes.begin(), bytes.end(), [value](std::byte byte) {
    return byte == std::byte(value);
  });
}

void expect(bool well, const char* what) {
  std::printf("%s: %s\n", what, well ? "ok" : "WRONG");
  if (!well) {
    std::exit(1);
  }
}

void message(dlslime::Endpoint& endpoint, bool first) {
  using Kind = dlslime::Operation::Kind;
  const auto memory =
      std::make_shared<dlslime::Bytes>(kBytes, std::byte(first ? 7 : 0));
  const auto operation = std::make_shared<Message>(
      first ? Kind::kSend : Kind::kReceive, endpoint.peer(), memory);
  first ? endpoint.engine()->send(*endpoint.group(), operation)
        : endpoint.engine()->receive(*endpoint.group(), operation);
  finish(endpoint, *operation);
  if (!first) {
    expect(isAll(*memory, 7), "message of 1 MiB");
  }
}

// The first process writes its memory into the second's.
void write(dlslime::Endpoint& endpoint, int socket, bool first) {
  auto& engine = *endpoint.engine();
  const auto memory =
      std::make_shared<dlslime::Bytes>(kBytes, std::byte(first ? 9 : 0));
  const auto region = engine.registerMemory(
      {memory->data(), memory->size()}, first ? "source" : "target", memory);
  const auto theirs = trade(socket, encode(region->handle()));
  if (first) {
    const auto remote = std::make_shared<const dlslime::RegionHandle>(
        dlslime::decodeRegion(theirs));
    dlslime::PieceBuilder pieces(*region, *remote, /*write=*/true, 1);
    pieces.add(/*localOffset=*/0, /*remoteOffset=*/0, kBytes);
    const auto transfer = std::make_shared<dlslime::Transfer>(
        dlslime::Operation::Kind::kWrite,
        endpoint.peer(),
        dlslime::Transfer::Parts{{region, remote, pieces.take()}});
    engine.transfer(*endpoint.group(), transfer);
    finish(endpoint, *transfer);
  }
  trade(socket, dlslime::Bytes(1)); // the write is over
  if (!first) {
    expect(isAll(*memory, 9), "write of 1 MiB");
  }
  engine.deregister(region, dlslime::deadlineAfter(kLimit));
}

int run(int socket, bool first) {
  const auto engine =
      std::make_shared<dlslime::Engine>(dlslime::Config::fromEnvironment());
  dlslime::Endpoint::Options options;
  options.name = first ? "first" : "second";
  dlslime::Endpoint endpoint(engine, options);
  endpoint.connect(trade(socket, endpoint.address()));
  message(endpoint, first);
  write(endpoint, socket, first);
  if (first) {
    const auto peer = engine->explain(
        *endpoint.group(), endpoint.peer(), dlslime::deadlineAfter(kLimit));
    std::printf(
        "route: %s, large messages by %s\n",
        peer.route.c_str(),
        peer.copy.c_str());
  }
  trade(socket, dlslime::Bytes(1)); // neither leaves before the other is done
  return 0;
}

} // namespace

int main() {
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets) != 0) {
    std::perror("socketpair");
    return 1;
  }
  // Before the first engine: a forked child can't use the parent's.
  const auto child = fork();
  try {
    const int status = run(sockets[child == 0], child == 0);
    std::fflush(stdout);
    if (child == 0) {
      return status;
    }
  } catch (const dlslime::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status == 0 ? 0 : 1;
}
