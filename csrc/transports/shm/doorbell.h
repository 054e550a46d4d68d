#pragma once

#include <atomic>
#include <cstdint>

#include "base/memory/segment.h"
#include "base/unique_fd.h"

namespace dlslime::shm {

constexpr size_t kDoorbellBytes = 4096;

struct DoorbellPage {
  std::atomic<uint32_t> turn; // odd: asleep; goes up with each change
};

// Tells peers whether this process must be rung: a word that it alone writes.
// One for all peers.
class Doorbell {
 public:
  Doorbell() : segment_(Segment::createForReaders(kDoorbellBytes)) {}

  // Before the last look at what peers publish: see RemoteDoorbell::ring().
  void setAsleep(bool asleep) {
    auto& turn = reinterpret_cast<DoorbellPage*>(segment_.data())->turn;
    const auto now = turn.load(std::memory_order_relaxed);
    if ((now % 2 != 0) != asleep) {
      turn.store(now + 1, std::memory_order_relaxed);
    }
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
  // For a peer.
  UniqueFd duplicatePage() const {
    return segment_.duplicateFd();
  }

 private:
  Segment segment_;
};

// A peer's doorbell: a byte on the socket between the two. Nothing that the
// peer does to its end can make the caller wait, or keeps a third process from
// ringing, as it could with a descriptor that all of them shared.
class RemoteDoorbell {
 public:
  explicit RemoteDoorbell(UniqueFd page);
  // The socket; -1: there is none any more.
  void useSocket(int fd) {
    socket_ = fd;
  }
  // Some thread of the peer is polling.
  bool awake() const {
    return turn() % 2 == 0;
  }
  // Cheap when the peer is awake, or has been rung since it fell asleep. Call
  // after publishing what it should see.
  void ring();
  // The kernel had no memory for it: ring() is to be called again.
  bool unrung() const {
    return unrung_;
  }

 private:
  uint32_t turn() const {
    return reinterpret_cast<const DoorbellPage*>(segment_.data())
        ->turn.load(std::memory_order_relaxed);
  }

  Segment segment_;
  int socket_ = -1;
  uint32_t rung_ = 0; // in this turn
  bool unrung_ = false;
};

} // namespace dlslime::shm
