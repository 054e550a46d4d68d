#pragma once

#include <atomic>
#include <string>

#include "torch_ext/support/waiting.h"

namespace dlslime {

// torch's monitored barrier: rank 0 hears of every rank, and tells which have
// not come in time. By messages, so that it needs nothing that a collective
// before it would have made. Any thread.
class MonitoredBarrier {
 public:
  explicit MonitoredBarrier(std::shared_ptr<GroupHandle> handle)
      : handle_(std::move(handle)) {}

  // Throws DistBackendError, with Gloo's texts and the cause: on rank 0, of the
  // first rank that has not come within `limit`, or of all of them.
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
  // So many were run: messages of earlier ones, which failed, are not taken for
  // those of a later one.
  std::atomic<uint64_t> count_{0};
};

} // namespace dlslime
