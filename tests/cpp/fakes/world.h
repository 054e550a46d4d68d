#pragma once

#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/bootstrap/map_rendezvous.h"
#include "engine/engine.h"
#include "interface/operation.h"

namespace dlslime::testing {

// A send or receive that owns its bytes.
class BufferOperation final : public Operation {
 public:
  BufferOperation(Kind kind, int peer, uint32_t tag, Bytes bytes)
      : BufferOperation(
            kind,
            peer,
            tag,
            std::make_shared<Bytes>(std::move(bytes))) {}
  const Bytes& buffer() const {
    return *bytes_;
  }

 private:
  BufferOperation(
      Kind kind,
      int peer,
      uint32_t tag,
      std::shared_ptr<Bytes> bytes)
      : Operation(kind, peer, tag, {bytes->data(), bytes->size()}),
        bytes_(std::move(bytes)) {}

  const std::shared_ptr<Bytes> bytes_;
};
using BufferPtr = std::shared_ptr<BufferOperation>;

// The thread sanitizer checks every access: pattern() is exempt, since no
// second thread has the memory, and single-threaded tests run fewer rounds.
#if defined(__SANITIZE_THREAD__)
constexpr bool kThreadSanitized = true;
#else
constexpr bool kThreadSanitized = false;
#endif

__attribute__((no_sanitize("thread"))) inline Bytes pattern(
    size_t size,
    unsigned seed = 1) {
  Bytes bytes(size);
  std::byte* const to = bytes.data();
  for (size_t i = 0; i < size; ++i) {
    to[i] = static_cast<std::byte>((i * 31 + i / 251 + seed * 7) & 0xff);
  }
  return bytes;
}

inline bool sameBytes(const Bytes& a, const Bytes& b) {
  return a.size() == b.size() &&
      (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

// A time-out that must not fire, however slow the machine.
constexpr milliseconds kAnHour{3600000};

// Waits for the condition; the limit is far above any test's need, so that only
// a hang fails.
template <typename Condition>
bool eventually(const Condition& condition, int seconds = 30) {
  const auto deadline = deadlineAfter(milliseconds(seconds * 1000));
  while (!condition()) {
    if (Clock::now() >= deadline) {
      return false;
    }
    std::this_thread::sleep_for(milliseconds(1));
  }
  return true;
}

inline BufferPtr makeSend(int peer, uint32_t tag, Bytes bytes) {
  return std::make_shared<BufferOperation>(
      Operation::Kind::kSend, peer, tag, std::move(bytes));
}

inline BufferPtr makeReceive(int peer, uint32_t tag, size_t size) {
  return std::make_shared<BufferOperation>(
      Operation::Kind::kReceive, peer, tag, Bytes(size));
}

// A process's engine and its membership in a group.
struct Node {
  std::shared_ptr<Engine> engine;
  std::shared_ptr<Group> group;

  BufferPtr send(int peer, uint32_t tag, Bytes bytes) {
    auto operation = makeSend(peer, tag, std::move(bytes));
    engine->send(*group, operation);
    return operation;
  }
  BufferPtr receive(int peer, uint32_t tag, size_t size) {
    auto operation = makeReceive(peer, tag, size);
    engine->receive(*group, operation);
    return operation;
  }
  // Waits; the limit is far above any test's need, so that only a hang fails.
  bool wait(const BufferPtr& operation, int seconds = 30) {
    return engine->wait(
        *operation, deadlineAfter(milliseconds(seconds * 1000)));
  }
};

// Several engines in a process, each an instance of its own: connected by
// sockets and shared memory, as processes are.
class World {
 public:
  explicit World(int size, Config config = {}) {
    for (int rank = 0; rank < size; ++rank) {
      nodes_.push_back({std::make_shared<Engine>(config), nullptr});
      join(rank, size, "world");
    }
  }
  ~World() {
    for (auto& node : nodes_) {
      if (node.group) {
        node.engine->abort(
            *node.group, Status(ErrorCode::kCancelled, "the test is over"));
      }
    }
  }
  Node& operator[](int rank) {
    return nodes_[static_cast<size_t>(rank)];
  }
  void join(int rank, int size, const std::string& name) {
    GroupOptions options;
    options.name = name;
    options.rank = rank;
    options.size = size;
    options.rendezvous = rendezvous_;
    auto& node = nodes_[static_cast<size_t>(rank)];
    node.group = node.engine->join(options);
  }
  const std::shared_ptr<MapRendezvous>& rendezvous() const {
    return rendezvous_;
  }

 private:
  std::shared_ptr<MapRendezvous> rendezvous_ =
      std::make_shared<MapRendezvous>();
  std::vector<Node> nodes_;
};

} // namespace dlslime::testing
