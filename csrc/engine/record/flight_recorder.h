#pragma once

#include <array>
#include <memory>
#include <vector>

#include "engine/record/histogram.h"
#include "engine/record/ticks.h"
#include "interface/operation.h"

namespace dlslime {

// What is kept of an operation, a cache line for each.
struct alignas(64) FlightRecord {
  enum class State : uint8_t { kPosted, kDone, kFailed };

  uint64_t number = 0; // from 1; 0: none
  uint64_t group = 0; // the engine's key of the group
  uint64_t bytes = 0; // of a receive: of its memory, then of the message
  uint64_t posted = 0; // Ticks
  uint64_t ended = 0; // Ticks; 0: under way
  int32_t peer = 0; // rank; of an any-source receive: once known
  uint32_t tag = 0;
  Operation::Kind kind = Operation::Kind::kSend;
  State state = State::kPosted;
  ErrorCode result = ErrorCode::kOk;
  uint8_t elementType = 0; // Operation::elementType
};
static_assert(sizeof(FlightRecord) == 64);

// The records kept, oldest first.
struct FlightLog {
  std::vector<FlightRecord> records;
  double tick = 1; // length in nanoseconds
  uint64_t nowTicks = 0;
  int64_t nowEpoch = 0; // the same moment, in nanoseconds since 1970

  // Returns the moment in nanoseconds since 1970.
  int64_t epochOf(uint64_t ticks) const {
    const auto ago = static_cast<double>(nowTicks - ticks) * tick;
    return nowEpoch - static_cast<int64_t>(ago);
  }
};

// Times and sizes of the operations of one kind that succeeded.
struct OperationTimes {
  // A latency means little across sizes, so there are three classes of size.
  static constexpr std::array<uint64_t, 2> kClassEnds{8 << 10, 1 << 20};
  static constexpr size_t kClasses = kClassEnds.size() + 1;

  std::array<Histogram, kClasses> ticks; // from the post to the end
  Histogram bytes;
};

// The last operations of this process, and histograms of all: always on, in
// fixed memory. What a program hangs on is most often among the last. The owner
// guards it (Completions).
class FlightRecorder {
 public:
  static constexpr size_t kMost = 4096; // a power of two
  static constexpr size_t kKinds = 4; // of Operation::Kind

  FlightRecorder();

  // Notes a post. Operations of the engine's own purposes are left out.
  void begin(Operation& operation);
  // Notes the end of an operation noted by begin().
  void end(const Operation& operation, const Status& status);
  // `tick` is the length of a tick in nanoseconds.
  FlightLog log(double tick) const;
  const OperationTimes& times(Operation::Kind kind) const {
    return (*times_)[static_cast<size_t>(kind)];
  }

 private:
  using Ring = std::array<FlightRecord, kMost>;
  using Times = std::array<OperationTimes, kKinds>;

  FlightRecord& placeOf(uint64_t number) {
    return (*ring_)[number % kMost];
  }

  const std::unique_ptr<Ring> ring_;
  const std::unique_ptr<Times> times_;
  uint64_t last_ = 0; // number of the newest record
};

} // namespace dlslime
