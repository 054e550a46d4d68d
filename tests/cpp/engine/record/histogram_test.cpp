#include "engine/record/histogram.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

namespace dlslime::testing {
namespace {

TEST(Histogram, BucketsAreRangesWithoutGaps) {
  for (size_t bucket = 0; bucket < Histogram::kBuckets; ++bucket) {
    const auto lowest = Histogram::lowestOf(bucket);
    const auto highest = Histogram::lowestOf(bucket + 1) - 1;
    ASSERT_LE(lowest, highest) << bucket;
    ASSERT_EQ(Histogram::bucketOf(lowest), bucket);
    ASSERT_EQ(Histogram::bucketOf(highest), bucket);
  }
  EXPECT_EQ(Histogram::lowestOf(0), 0U);
}

TEST(Histogram, BoundsDifferByAnEighthAtMost) {
  for (size_t bucket = 0; bucket < Histogram::kBuckets; ++bucket) {
    const auto lowest = Histogram::lowestOf(bucket);
    const auto width = Histogram::lowestOf(bucket + 1) - lowest;
    ASSERT_LE(width, std::max<uint64_t>(1, lowest / 8)) << bucket;
  }
}

TEST(Histogram, SmallValuesHaveBucketsOfTheirOwn) {
  for (uint64_t value = 0; value < 16; ++value) {
    EXPECT_EQ(Histogram::lowestOf(Histogram::bucketOf(value)), value);
    EXPECT_EQ(Histogram::lowestOf(Histogram::bucketOf(value) + 1), value + 1);
  }
}

TEST(Histogram, LargestValuesHaveTheLastBucket) {
  constexpr auto kLast = Histogram::kBuckets - 1;
  constexpr auto kEnd = uint64_t{1} << Histogram::kMostBits;
  for (const auto value :
       {kEnd - 1, kEnd, kEnd + 1, std::numeric_limits<uint64_t>::max()}) {
    EXPECT_EQ(Histogram::bucketOf(value), kLast) << value;
  }
  EXPECT_EQ(Histogram::lowestOf(kLast + 1), kEnd);
  Histogram histogram;
  histogram.add(std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(histogram.countOf(kLast), 1U);
}

TEST(Histogram, EveryValueIsCountedInItsBucket) {
  Histogram histogram;
  std::mt19937_64 random(3);
  uint64_t sum = 0;
  for (int i = 0; i < 20000; ++i) {
    const uint64_t value = random() >> (20 + random() % 44);
    histogram.add(value);
    sum += value;
    const auto bucket = Histogram::bucketOf(value);
    ASSERT_LE(Histogram::lowestOf(bucket), value);
    ASSERT_GT(Histogram::lowestOf(bucket + 1), value);
  }
  EXPECT_EQ(histogram.count(), 20000U);
  EXPECT_EQ(histogram.sum(), sum);
  uint64_t counted = 0;
  for (size_t bucket = 0; bucket < Histogram::kBuckets; ++bucket) {
    counted += histogram.countOf(bucket);
  }
  EXPECT_EQ(counted, 20000U);
}

} // namespace
} // namespace dlslime::testing
