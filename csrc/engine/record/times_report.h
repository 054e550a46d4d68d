#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/library/api.h"
#include "engine/record/flight_recorder.h"

namespace dlslime {

// A histogram for users.
struct HistogramReport {
  uint64_t count = 0;
  uint64_t sum = 0;
  // For each bucket with values: the smallest value beyond the bucket, and the
  // number of values in the bucket. In order.
  std::vector<std::pair<uint64_t, uint64_t>> buckets;
};

// Times and sizes of this process's operations of one kind that succeeded.
struct OperationReport {
  const char* kind = ""; // "send", "receive", "read", "write"
  // Nanoseconds from the post to the end, of each class of size
  // (OperationTimes).
  std::array<HistogramReport, OperationTimes::kClasses> nanoseconds;
  HistogramReport bytes;
};

// Returns a report for each kind. `tick` is Ticks::nanoseconds(). Under the
// engine's lock.
std::vector<OperationReport> reportTimes(
    const FlightRecorder& recorder,
    double tick);

} // namespace dlslime
