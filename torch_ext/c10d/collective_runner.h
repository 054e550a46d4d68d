#pragma once

#include <atomic>
#include <memory>

#include "torch_ext/c10d/coalescing.h"
#include "torch_ext/c10d/collective_checks.h"
#include "torch_ext/c10d/collective_work.h"
#include "torch_ext/c10d/collectives.h"
#include "torch_ext/c10d/monitored_barrier.h"
#include "torch_ext/support/python_end.h"

namespace dlslime {

// Runs the collectives of a group, each by torch's own backend for the device.
// Any thread may call.
class CollectiveRunner {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  CollectiveRunner(
      int rank,
      int size,
      std::shared_ptr<GroupHandle> handle,
      MakeCollectives makeCollectives);

  // Passes the backend and the options to `call`, perhaps later and on a
  // different thread, so `call` holds the arguments by value. Setting up the
  // backend counts against the time-out. A collective refused by `check` does
  // not begin.
  template <typename Settings, typename Check, typename Call>
  WorkPtr run(
      c10::DeviceType device,
      c10d::OpType type,
      const Settings& options,
      const Check& check,
      Call call) {
    const StaysWhenPythonEnds stays;
    const auto limit = limitOf(options.timeout);
    requireUsable();
    if (device == c10::DeviceType::CPU) {
      check(CollectiveChecks(rank_, size_));
    }
    const auto number = sequence_.fetch_add(1) + 1;
    if (device != c10::DeviceType::CPU) {
      const auto begun = Clock::now();
      const auto backend = collectives_->await(device, limit);
      const auto work = call(*backend, within(limit, begun, options));
      coalescing_.note(work);
      return work;
    }
    const auto ask =
        [options, call = std::move(call)](
            c10d::Backend& backend,
            std::optional<std::chrono::milliseconds> left) mutable {
          auto own = options;
          own.timeout = left.value_or(options.timeout);
          return call(backend, own);
        };
    return runOnCpu(type, number, limit, ask);
  }

  void monitoredBarrier(std::chrono::milliseconds timeout, bool waitAllRanks);

  Coalescing& coalescing() {
    return coalescing_;
  }
  Collectives& backends() {
    return *collectives_;
  }
  // Number of collectives called.
  uint64_t sequence() const {
    return sequence_.load();
  }
  // Refuses collectives from now on, because the group is being aborted.
  void refuse() {
    aborted_.store(true);
  }
  bool aborted() const {
    return aborted_.load();
  }
  // Ends all collectives with `why` for their callers.
  void endAll(const Status& why);
  // Before the end of the group: keeps Gloo with its threads if collectives are
  // under way, or always.
  void leakIfBusy(bool always);

 private:
  // Begins a collective by a backend, with the rest of the time-out; none means
  // the full time-out.
  using Ask = std::function<WorkPtr(
      c10d::Backend& backend,
      std::optional<std::chrono::milliseconds> left)>;

  void requireUsable() const;
  std::chrono::milliseconds limitOf(std::chrono::milliseconds timeout) const;
  WorkPtr runOnCpu(
      c10d::OpType type,
      uint64_t number,
      std::chrono::milliseconds limit,
      Ask ask);
  // Returns the options with the time-out shortened by the time since `begun`,
  // if longer than 100 ms.
  template <typename Settings>
  static Settings
  within(std::chrono::milliseconds limit, TimePoint begun, Settings options) {
    const auto taken = std::chrono::duration_cast<std::chrono::milliseconds>(
        Clock::now() - begun);
    if (taken > std::chrono::milliseconds(100)) {
      options.timeout = std::max(limit - taken, std::chrono::milliseconds(1));
    }
    return options;
  }

  const int rank_, size_;
  const std::shared_ptr<GroupHandle> handle_;
  const std::shared_ptr<LiveCollectives> live_ =
      std::make_shared<LiveCollectives>();
  const std::shared_ptr<Collectives> collectives_;
  MonitoredBarrier monitoredBarrier_;
  Coalescing coalescing_;
  std::atomic<uint64_t> sequence_{0};
  std::atomic<bool> aborted_{false};
};

} // namespace dlslime
