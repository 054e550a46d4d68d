#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "base/clock.h"
#include "interface/carrier.h"
#include "interface/memory.h"

namespace dlslime::testing {

// Faults on order.
struct CarrierFaults {
  int failingMake = -1; // make() throws at the given end
  int hangingMake = -1; // the given end never comes: its peer waits
  uint64_t breakAfterSends = 0; // sends before the carrier breaks; 0: no break
};

// Carriers over queues in memory, instead of Gloo: block as Gloo does, deliver
// all bytes sent before an end lets go, and fail on order.
class MemoryCarriers final
    : public gloo::CarrierSource,
      public std::enable_shared_from_this<MemoryCarriers> {
 public:
  explicit MemoryCarriers(CarrierFaults faults = {}) : faults_(faults) {}

  std::unique_ptr<gloo::Carrier>
  make(const std::string& nonce, int end, const OpenSideSocket& side) override;

  // Returns the number of carriers alive.
  int live() const {
    return live_;
  }
  int made() const {
    return made_;
  }
  // Returns the number of threads in make().
  int making() const {
    return making_;
  }
  // Ends all waits in make() with an error.
  void release();
  // Holds messages back from now on, until the carrier is closed.
  void stall() {
    stalled_ = true;
  }

 private:
  class End;
  struct Pipe {
    std::mutex mutex;
    std::condition_variable changed;
    // Sent and not yet received, by receiving end.
    std::deque<Bytes> to[2];
    // Why sending has ended, for both ends; null before.
    const char* ended = nullptr;
    bool present[2] = {false, false};
    uint64_t sends = 0;
  };

  const CarrierFaults faults_;
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Pipe>> pipes_;
  std::atomic<int> live_{0}, made_{0}, making_{0};
  std::atomic<bool> released_{false}, stalled_{false};
};

} // namespace dlslime::testing
