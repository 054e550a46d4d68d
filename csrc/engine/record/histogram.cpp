#include "engine/record/histogram.h"

#include <algorithm>

namespace dlslime {

uint64_t Histogram::quantile(double share) const {
  const auto wanted = std::clamp<uint64_t>(
      static_cast<uint64_t>(share * static_cast<double>(count_) + 0.5),
      1,
      std::max<uint64_t>(count_, 1));
  uint64_t passed = 0;
  for (size_t bucket = 0; bucket < kBuckets; ++bucket) {
    passed += counts_[bucket];
    if (passed >= wanted) {
      return (lowestOf(bucket) + lowestOf(bucket + 1)) / 2;
    }
  }
  return 0;
}

} // namespace dlslime
