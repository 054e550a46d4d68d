#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace dlslime {

// Counts of values by size, in fixed memory: eight equal buckets for each power
// of two, so that a bucket's bounds differ by an eighth at most. Values from
// 2^kMostBits on count as the largest.
class Histogram {
 public:
  static constexpr unsigned kStepBits = 3;
  static constexpr unsigned kMostBits = 48;
  static constexpr size_t kBuckets = (size_t{kMostBits} - kStepBits + 1)
      << kStepBits;

  static constexpr size_t bucketOf(uint64_t value) {
    constexpr uint64_t kMost = (uint64_t{1} << kMostBits) - 1;
    value = value < kMost ? value : kMost;
    const auto bits = static_cast<unsigned>(std::bit_width(value));
    const unsigned shift = bits > kStepBits + 1 ? bits - kStepBits - 1 : 0;
    return (size_t{shift} << kStepBits) + (value >> shift);
  }
  // Returns the smallest value of a bucket.
  static constexpr uint64_t lowestOf(size_t bucket) {
    constexpr size_t kSteps = size_t{1} << kStepBits;
    const size_t shift = bucket < 2 * kSteps ? 0 : bucket / kSteps - 1;
    return uint64_t{bucket - shift * kSteps} << shift;
  }

  void add(uint64_t value) {
    ++counts_[bucketOf(value)];
    ++count_;
    sum_ += value;
  }
  uint64_t count() const {
    return count_;
  }
  uint64_t sum() const {
    return sum_;
  }
  uint64_t countOf(size_t bucket) const {
    return counts_.at(bucket);
  }

 private:
  std::array<uint64_t, kBuckets> counts_{};
  uint64_t count_ = 0;
  uint64_t sum_ = 0;
};

} // namespace dlslime
