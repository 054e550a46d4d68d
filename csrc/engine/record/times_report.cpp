#include "engine/record/times_report.h"

namespace dlslime {

namespace {

uint64_t scaled(uint64_t value, double unit) {
  return static_cast<uint64_t>(static_cast<double>(value) * unit);
}

HistogramReport reportOf(const Histogram& histogram, double unit) {
  HistogramReport report;
  report.count = histogram.count();
  report.sum = scaled(histogram.sum(), unit);
  for (size_t bucket = 0; bucket < Histogram::kBuckets; ++bucket) {
    if (const auto count = histogram.countOf(bucket); count != 0) {
      const auto end = scaled(Histogram::lowestOf(bucket + 1), unit);
      report.buckets.emplace_back(end, count);
    }
  }
  return report;
}

} // namespace

std::vector<OperationReport> reportTimes(
    const FlightRecorder& recorder,
    double tick) {
  using Kind = Operation::Kind;
  constexpr std::array<std::pair<Kind, const char*>, FlightRecorder::kKinds>
      kNames{
          {{Kind::kSend, "send"},
           {Kind::kReceive, "receive"},
           {Kind::kRead, "read"},
           {Kind::kWrite, "write"}}};
  std::vector<OperationReport> reports;
  for (const auto& [kind, name] : kNames) {
    const auto& times = recorder.times(kind);
    OperationReport report;
    report.kind = name;
    for (size_t i = 0; i < OperationTimes::kClasses; ++i) {
      report.nanoseconds[i] = reportOf(times.ticks[i], tick);
    }
    report.bytes = reportOf(times.bytes, 1);
    reports.push_back(std::move(report));
  }
  return reports;
}

} // namespace dlslime
