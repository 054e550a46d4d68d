#include "transports/rdma/rail/eager_ring.h"

#include <gtest/gtest.h>

#include <deque>
#include <random>

namespace dlslime::rdma {
namespace {

TEST(RdmaRing, FillsWholeAndRefusesMore) {
  RingProducer producer;
  for (uint32_t i = 0; i < kRingUnits; ++i) {
    ASSERT_EQ(producer.reserve(1), kFirstPosition + i);
  }
  EXPECT_FALSE(producer.reserve(1));
  EXPECT_TRUE(producer.credit(kFirstPosition + 1));
  EXPECT_EQ(producer.reserve(kRingUnit), kFirstPosition + kRingUnits);
  EXPECT_FALSE(producer.reserve(1));
}

TEST(RdmaRing, CreditForWhatWasNotSentIsRefused) {
  RingProducer producer;
  producer.reserve(3 * kRingUnit);
  EXPECT_FALSE(producer.credit(kFirstPosition + 4));
  EXPECT_FALSE(producer.credit(kFirstPosition - 1)) << "before the beginning";
  EXPECT_TRUE(producer.credit(kFirstPosition + 3));
  EXPECT_TRUE(producer.credit(kFirstPosition + 3)) << "told twice";
}

// Credit for half a record would have the rest read as a header when the
// connection breaks.
TEST(RdmaRing, CreditForTheMiddleOfARecordIsRefused) {
  RingProducer producer;
  producer.reserve(3 * kRingUnit);
  producer.reserve(2 * kRingUnit);
  for (const uint32_t middle : {1, 2, 4}) {
    EXPECT_FALSE(producer.credit(kFirstPosition + middle)) << middle;
  }
  EXPECT_TRUE(producer.credit(kFirstPosition + 3));
  EXPECT_FALSE(producer.credit(kFirstPosition + 4));
  EXPECT_TRUE(producer.credit(kFirstPosition + 5));
}

TEST(RdmaRing, CreditUpToWhatWasSkippedIsTaken) {
  RingProducer producer;
  constexpr uint32_t kBefore = kRingUnits - 10;
  for (uint32_t i = 0; i < kBefore; ++i) {
    producer.reserve(1);
  }
  EXPECT_TRUE(producer.credit(kFirstPosition + kBefore));
  EXPECT_EQ(producer.reserve(20 * kRingUnit), kFirstPosition + kRingUnits);
  EXPECT_TRUE(producer.credit(kFirstPosition + kBefore)) << "told again";
  EXPECT_FALSE(producer.credit(kFirstPosition + kBefore + 1));
  EXPECT_TRUE(producer.credit(kFirstPosition + kRingUnits));
  EXPECT_FALSE(producer.credit(kFirstPosition + kRingUnits + 1));
}

TEST(RdmaRing, OnlyTheNextRecordIsExpected) {
  RingConsumer consumer;
  constexpr uint32_t first = kFirstPosition;
  EXPECT_TRUE(consumer.expects(first));
  EXPECT_FALSE(consumer.expects(first + 1));
  EXPECT_FALSE(consumer.expects(first + kRingUnits)) << "nothing was skipped";
  consumer.consume(first, 1000 * kRingUnit);
  EXPECT_TRUE(consumer.expects(first + 1000));
  EXPECT_TRUE(consumer.expects(first + kRingUnits)) << "the end was skipped";
  EXPECT_FALSE(consumer.expects(first + 2 * kRingUnits));
  EXPECT_FALSE(consumer.expects(first));
}

TEST(RdmaRing, RandomRecordsNeverOverlapAndPositionsWrap) {
  std::mt19937 random(7);
  RingProducer producer;
  RingConsumer consumer;
  struct Record {
    uint32_t position;
    size_t bytes;
  };
  std::deque<Record> flying;
  uint32_t last = 0;
  int wraps = 0;
  for (int i = 0; i < 20000; ++i) {
    const size_t bytes = 1 + random() % kMostRecordBytes;
    const auto position = producer.reserve(bytes);
    if (!position) {
      ASSERT_FALSE(flying.empty()) << "full of nothing";
      const auto record = flying.front();
      flying.pop_front();
      ASSERT_TRUE(consumer.expects(record.position));
      consumer.consume(record.position, record.bytes);
      if (const auto credit = consumer.takeCredit()) {
        ASSERT_TRUE(producer.credit(*credit));
      }
      continue;
    }
    ASSERT_LE(*position % kRingUnits + unitsOf(bytes), kRingUnits);
    wraps += *position < last;
    last = *position;
    flying.push_back({*position, bytes});
    uint32_t held = 0;
    for (const auto& record : flying) {
      held += unitsOf(record.bytes);
    }
    ASSERT_LE(held, kRingUnits);
  }
  EXPECT_EQ(wraps, 1) << "of the positions' 31 bits";
}

} // namespace
} // namespace dlslime::rdma
