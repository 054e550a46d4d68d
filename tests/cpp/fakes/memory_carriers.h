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

// What goes wrong.
struct CarrierFaults {
  int failingMake = -1; // make() throws at this end
  int hangingMake = -1; // this end never comes: the other one waits for it
  uint64_t breakAfterSends = 0; // the carrier breaks then; 0: never
};

// Carriers over queues in memory, in place of Gloo: they block like it, lose
// nothing that was sent before an end lets go, and fail when a test says.
class MemoryCarriers final
    : public gloo::CarrierSource,
      public std::enable_shared_from_this<MemoryCarriers> {
 public:
  explicit MemoryCarriers(CarrierFaults faults = {}) : faults_(faults) {}

  std::unique_ptr<gloo::Carrier>
  make(const std::string& nonce, int end, const OpenSideSocket& side) override;

  // Carriers that exist now.
  int live() const {
    return live_;
  }
  int made() const {
    return made_;
  }
  // Threads that are in make() now.
  int making() const {
    return making_;
  }
  // Lets everybody who hangs in make() go, with an error.
  void release();
  // From now on nothing arrives before its carrier is closed.
  void stall() {
    stalled_ = true;
  }

 private:
  class End;
  struct Pipe {
    std::mutex mutex;
    std::condition_variable changed;
    // What was sent and not received yet, by receiving end.
    std::deque<Bytes> to[2];
    // Why no more will be sent, the same for both ends; null before.
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
