#include "engine/two_sided/sequencer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <climits>
#include <random>

#include "fakes/world.h"

namespace dlslime {
namespace {

using Verdict = Sequencer::Verdict;

class SequencerTest : public ::testing::Test {
 protected:
  // Handles a message as a channel does.
  Verdict take(uint64_t number) {
    MessageHeader header;
    header.sequence = number;
    const Bytes payload = testing::pattern(number % 50, 3);
    const auto verdict = sequencer.check(header, payload);
    if (verdict == Verdict::kNow) {
      handled.push_back(number);
      sequencer.drain(INT_MAX, [&](const MessageHeader& kept, ByteSpan bytes) {
        const Bytes expected = testing::pattern(kept.sequence % 50, 3);
        EXPECT_TRUE(std::equal(
            bytes.begin(), bytes.end(), expected.begin(), expected.end()));
        handled.push_back(kept.sequence);
      });
    }
    return verdict;
  }

  Sequencer sequencer;
  std::vector<uint64_t> handled;
};

TEST_F(SequencerTest, MessagesInOrderAreHandledAtOnce) {
  for (uint64_t i = 1; i <= 10; ++i) {
    EXPECT_EQ(take(i), Verdict::kNow);
  }
  EXPECT_EQ(sequencer.kept(), 0U);
}

TEST_F(SequencerTest, EarlyMessageWaitsForTheOnesBefore) {
  EXPECT_EQ(take(3), Verdict::kLater);
  EXPECT_EQ(take(2), Verdict::kLater);
  EXPECT_EQ(sequencer.kept(), 2U);
  EXPECT_EQ(take(1), Verdict::kNow);
  EXPECT_EQ(handled, (std::vector<uint64_t>{1, 2, 3}));
  EXPECT_EQ(sequencer.kept(), 0U);
}

TEST_F(SequencerTest, RepetitionsAreDropped) {
  take(1);
  EXPECT_EQ(take(1), Verdict::kSeen);
  take(3);
  take(3);
  EXPECT_EQ(sequencer.kept(), 1U);
  take(2);
  EXPECT_EQ(take(3), Verdict::kSeen);
  EXPECT_EQ(handled, (std::vector<uint64_t>{1, 2, 3}));
}

TEST_F(SequencerTest, NumberZeroIsNeverHandled) {
  EXPECT_EQ(take(0), Verdict::kSeen);
}

TEST_F(SequencerTest, LargestNumberIsOnlyKept) {
  EXPECT_EQ(take(~0ULL), Verdict::kLater);
  EXPECT_EQ(take(1), Verdict::kNow);
  EXPECT_EQ(sequencer.kept(), 1U);
}

TEST_F(SequencerTest, RestOfAPortionStandsBehindNoRepetition) {
  for (const uint64_t early : {2, 3, 4, 5}) {
    take(early);
  }
  MessageHeader header;
  header.sequence = 1;
  ASSERT_EQ(sequencer.check(header, {}), Verdict::kNow);
  const auto note = [&](const MessageHeader& kept, ByteSpan /*bytes*/) {
    handled.push_back(kept.sequence);
  };
  EXPECT_TRUE(sequencer.drain(1, note));
  EXPECT_EQ(take(6), Verdict::kLater);
  EXPECT_EQ(take(3), Verdict::kNow);
  EXPECT_EQ(handled, (std::vector<uint64_t>{2, 3, 4, 5, 6}));
  EXPECT_EQ(sequencer.keptBytes(), 0U);
  EXPECT_FALSE(sequencer.drain(1, note));
}

TEST_F(SequencerTest, AnyPermutationWithRepetitionsComesInOrder) {
  std::mt19937 random(4);
  for (int round = 0; round < 200; ++round) {
    sequencer = {};
    handled.clear();
    std::vector<uint64_t> numbers;
    for (uint64_t i = 1; i <= 100; ++i) {
      numbers.insert(numbers.end(), 1 + random() % 3, i);
    }
    std::shuffle(numbers.begin(), numbers.end(), random);
    for (const auto number : numbers) {
      take(number);
    }
    ASSERT_EQ(handled.size(), 100U);
    EXPECT_TRUE(std::is_sorted(handled.begin(), handled.end()));
    EXPECT_EQ(sequencer.kept(), 0U);
  }
}

} // namespace
} // namespace dlslime
