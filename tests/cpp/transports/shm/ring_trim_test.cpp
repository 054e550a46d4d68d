// A ring that gives memory back while empty.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "base/memory/segment.h"
#include "fakes/world.h"
#include "transports/shm/ring.h"

namespace dlslime::shm {
namespace {

using ::dlslime::testing::pattern;
using Next = RingConsumer::Next;

// A ring in real shared memory, whose pages can be counted.
class TrimTest : public ::testing::Test {
 protected:
  static constexpr size_t kBytes = 1024 * 1024;

  bool push(uint64_t number, size_t size) {
    MessageHeader header;
    header.type = MessageType::kEager;
    header.sequence = number;
    return producer.push(header, pattern(size, number));
  }
  bool holds(uint64_t number, size_t size) {
    MessageHeader header;
    ByteSpan payload;
    const auto expected = pattern(size, number);
    const bool same =
        consumer.peek(header, payload) == Next::kMessage &&
        header.sequence == number &&
        std::equal(
            payload.begin(), payload.end(), expected.begin(), expected.end());
    consumer.pop();
    return same;
  }
  size_t resident() {
    struct stat info {};
    EXPECT_EQ(fstat(segment.duplicateFd().get(), &info), 0);
    return static_cast<size_t>(info.st_blocks) * 512;
  }

  Segment segment = Segment::create(kBytes);
  RingControl control{};
  RingProducer producer{control, segment.data(), kBytes};
  RingConsumer consumer{control, segment.data(), kBytes};
};

TEST_F(TrimTest, GivesBackWhatHasBeenRead) {
  for (uint64_t i = 0; i < 10; ++i) {
    ASSERT_TRUE(push(i, 60000));
    ASSERT_TRUE(holds(i, 60000));
  }
  EXPECT_GE(producer.touched(), 600000U);
  EXPECT_GE(resident(), 600000U);
  producer.trim();
  EXPECT_EQ(producer.touched(), 0U);
  EXPECT_LE(resident(), 4096U) << "the page where the next record begins";
  for (uint64_t i = 0; i < 100; ++i) {
    ASSERT_TRUE(push(i, 60000)) << "comes back by itself";
    ASSERT_TRUE(holds(i, 60000));
  }
}

TEST_F(TrimTest, KeepsWhatIsNotRead) {
  for (uint64_t round = 0; round < 40; ++round) { // wraps around, too
    const uint64_t first = round * 3;
    for (uint64_t i = 0; i < 3; ++i) {
      ASSERT_TRUE(push(first + i, 100 + 50000 * i));
    }
    ASSERT_TRUE(holds(first, 100));
    producer.trim();
    EXPECT_GE(producer.touched(), 150000U);
    EXPECT_LE(resident(), 150000U + 4 * 4096U);
    ASSERT_TRUE(holds(first + 1, 50100));
    ASSERT_TRUE(holds(first + 2, 100100));
  }
}

TEST_F(TrimTest, FullRingIsLeftAlone) {
  uint64_t last = 0;
  while (push(last, 30000)) {
    ++last;
  }
  producer.trim();
  for (uint64_t i = 0; i < last; ++i) {
    ASSERT_TRUE(holds(i, 30000));
  }
}

} // namespace
} // namespace dlslime::shm
