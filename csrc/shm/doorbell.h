#pragma once

#include <atomic>
#include <cstdint>

#include "core/segment.h"
#include "core/unique_fd.h"

namespace dlslime::shm {

constexpr size_t kDoorbellBytes = 4096;

struct DoorbellPage {
  std::atomic<uint32_t> asleep; // 1: whoever has something for us must ring
};

// How peers wake this process: a shared word that says whether anybody is
// looking, and an eventfd to write to when nobody is. One for all peers.
class Doorbell {
 public:
  Doorbell();

  int fd() const {
    return event_.get();
  }
  // Before the last look at what peers publish: see RemoteDoorbell::ring().
  void setAsleep(bool asleep) {
    page().asleep.store(asleep ? 1 : 0, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
  void drain();
  // Copies for a peer: the page, then the eventfd.
  UniqueFd duplicatePage() const {
    return segment_.duplicateFd();
  }
  UniqueFd duplicateEvent() const;

 private:
  DoorbellPage& page() {
    return *reinterpret_cast<DoorbellPage*>(segment_.data());
  }

  Segment segment_;
  UniqueFd event_;
};

// A peer's doorbell.
class RemoteDoorbell {
 public:
  RemoteDoorbell(UniqueFd page, UniqueFd event);
  // Some thread of the peer is polling.
  bool awake() const {
    return reinterpret_cast<DoorbellPage*>(segment_.data())
               ->asleep.load(std::memory_order_relaxed) == 0;
  }
  // Cheap when the peer is awake. Call after publishing what it should see.
  void ring();

 private:
  Segment segment_;
  UniqueFd event_;
};

} // namespace dlslime::shm
