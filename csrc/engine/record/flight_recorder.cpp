#include "engine/record/flight_recorder.h"

#include <algorithm>
#include <chrono>

namespace dlslime {

namespace {

// Tags from here on are of the engine's own messages (tagName()).
constexpr uint32_t kFirstInternalTag = uint32_t{1} << 31;

size_t classOf(uint64_t bytes) {
  const auto& ends = OperationTimes::kClassEnds;
  return static_cast<size_t>(
      std::lower_bound(ends.begin(), ends.end(), bytes) - ends.begin());
}

} // namespace

FlightRecorder::FlightRecorder()
    : ring_(std::make_unique<Ring>()), times_(std::make_unique<Times>()) {}

void FlightRecorder::begin(Operation& operation) {
  if (operation.tag() >= kFirstInternalTag) {
    return;
  }
  operation.record = ++last_;
  // The next line is in no near cache after 4,095 other records.
  __builtin_prefetch(&placeOf(last_ + 1), 1);
  auto& record = placeOf(last_);
  record.number = last_;
  record.group = operation.groupKey;
  record.bytes = operation.oneSided() ? operation.bytes() : operation.size();
  record.posted = Ticks::now();
  record.ended = 0;
  record.peer = operation.peer();
  record.tag = operation.tag();
  record.kind = operation.kind();
  record.state = FlightRecord::State::kPosted;
  record.result = ErrorCode::kOk;
  record.elementType = operation.elementType;
}

void FlightRecorder::end(const Operation& operation, const Status& status) {
  auto& record = placeOf(operation.record);
  if (operation.record == 0 || record.number != operation.record) {
    return; // not noted, or so long ago that another has the place
  }
  record.ended = Ticks::now();
  record.result = status.code();
  if (!status.ok()) {
    record.state = FlightRecord::State::kFailed;
    return;
  }
  record.state = FlightRecord::State::kDone;
  if (record.kind == Operation::Kind::kReceive) {
    record.peer = operation.source();
    record.bytes = operation.bytes();
  }
  auto& times = (*times_)[static_cast<size_t>(record.kind)];
  times.ticks[classOf(record.bytes)].add(record.ended - record.posted);
  times.bytes.add(record.bytes);
}

FlightLog FlightRecorder::log(double tick) const {
  FlightLog log;
  log.tick = tick;
  log.nowTicks = Ticks::now();
  log.nowEpoch = std::chrono::duration_cast<std::chrono::nanoseconds>(
                     std::chrono::system_clock::now().time_since_epoch())
                     .count();
  const uint64_t first = last_ < kMost ? 1 : last_ - kMost + 1;
  for (uint64_t number = first; number <= last_; ++number) {
    log.records.push_back((*ring_)[number % kMost]);
  }
  return log;
}

} // namespace dlslime
