#pragma once

#include <atomic>
#include <cstdint>

#include "base/memory/segment.h"
#include "base/unique_fd.h"

namespace dlslime::shm {

constexpr size_t kDoorbellBytes = 4096;

struct DoorbellPage {
  std::atomic<uint32_t> turn; // odd: asleep; each change adds 1
};

// Tells all peers whether the process sleeps and must be rung, by a word
// written by the process alone.
class Doorbell {
 public:
  Doorbell() : segment_(Segment::createForReaders(kDoorbellBytes)) {}

  // Call before the last look at data published by peers;
  // RemoteDoorbell::ring() has the counterpart of the fence.
  void setAsleep(bool asleep) {
    auto& turn = reinterpret_cast<DoorbellPage*>(segment_.data())->turn;
    const auto now = turn.load(std::memory_order_relaxed);
    if ((now % 2 != 0) != asleep) {
      turn.store(now + 1, std::memory_order_relaxed);
    }
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
  // Returns a descriptor of the page for a peer.
  UniqueFd duplicatePage() const {
    return segment_.duplicateFd();
  }

 private:
  Segment segment_;
};

// Wakes a peer by a byte on the pair's socket. A peer can neither block the
// caller nor keep a third process from ringing, as would be possible with a
// descriptor shared by all processes.
class RemoteDoorbell {
 public:
  explicit RemoteDoorbell(UniqueFd page);
  // Sets the socket to ring by; -1: the socket has been closed.
  void useSocket(int fd) {
    socket_ = fd;
  }
  int socket() const {
    return socket_;
  }
  // Returns true while some thread of the peer polls.
  bool awake() const {
    return turn() % 2 == 0;
  }
  // Wakes the peer, unless awake or already rung since falling asleep: then the
  // call is cheap. Call after publishing the data for the peer.
  void ring();
  // Returns true if the last ring() failed for want of kernel memory, or by a
  // signal, and must be repeated.
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
  uint32_t rung_ = 0; // turn of the last ring; 0: none
  bool unrung_ = false;
};

} // namespace dlslime::shm
