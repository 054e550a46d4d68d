#pragma once

#include <atomic>
#include <string>

#include "torch_ext/support/waiting.h"

namespace dlslime {

// torch's monitored barrier: rank 0 hears from every rank, and names the ranks
// that are late. Uses only messages, so that no earlier collective is needed.
// Any thread.
class MonitoredBarrier {
 public:
  explicit MonitoredBarrier(std::shared_ptr<GroupHandle> handle)
      : handle_(std::move(handle)) {}

  // Throws DistBackendError with Gloo's texts and the cause. Rank 0 names the
  // first rank missing after `limit`, or with `waitAllRanks` all missing ranks.
  void run(std::chrono::milliseconds limit, bool waitAllRanks);

 private:
  void reach(uint64_t number, TimePoint deadline);
  void lead(
      uint64_t number,
      milliseconds limit,
      TimePoint deadline,
      bool waitAllRanks);
  void send(int peer, uint64_t number, const std::string& verdict);
  std::string receive(int peer, uint64_t number, TimePoint deadline);

  const std::shared_ptr<GroupHandle> handle_;
  // Number of barriers run. Messages carry the number, so that messages of an
  // earlier, failed barrier are skipped.
  std::atomic<uint64_t> count_{0};
};

} // namespace dlslime
