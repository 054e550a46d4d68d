#include "transports/shm/copy_desk.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace dlslime::shm {
namespace {

constexpr size_t kGiB = size_t{1} << 30;

std::vector<size_t> interestingLengths() {
  std::vector<size_t> lengths;
  for (size_t length = 1; length < 20000; ++length) {
    lengths.push_back(length);
  }
  for (size_t power = 1 << 14; power <= 256 * kGiB; power *= 2) {
    for (const size_t length :
         {power - 1, power, power + 1, power + power / 3}) {
      lengths.push_back(length);
    }
  }
  return lengths;
}

TEST(CopyDeskTest, PiecesCoverEveryLengthExactly) {
  for (const size_t length : interestingLengths()) {
    const size_t piece = pieceBytes(length);
    const size_t count = pieceCount(length);
    ASSERT_GT(piece, 0U) << length;
    ASSERT_GE(count, 1U) << length;
    ASSERT_LE(count, kMaxPieces) << length;
    ASSERT_GE(count * piece, length);
    ASSERT_LT((count - 1) * piece, length) << "an empty last piece";
  }
}

TEST(CopyDeskTest, EmptyMessageHasNoPieces) {
  EXPECT_EQ(pieceCount(0), 0U);
  EXPECT_GT(pieceBytes(0), 0U);
}

TEST(CopyDeskTest, LargeMessagesAreSplitForTwo) {
  for (const size_t length : {size_t{64} << 10, size_t{1} << 20, kGiB}) {
    EXPECT_GE(pieceCount(length), 2U) << length;
  }
}

TEST(CopyDeskTest, NewDeskHasNothingToTake) {
  CopyDesk desk{};
  EXPECT_FALSE(takeFront(desk));
  EXPECT_FALSE(takeBack(desk));
}

TEST(CopyDeskTest, FrontAndBackMeetInTheMiddle) {
  CopyDesk desk{};
  const size_t length = 8 << 20;
  openDesk(desk, 7, 0x1000, length);
  const uint32_t total = pieceCount(length);
  std::vector<bool> seen(total);
  for (uint32_t i = 0; i < total; ++i) {
    const auto piece = i % 3 == 0 ? takeBack(desk) : takeFront(desk);
    ASSERT_TRUE(piece);
    ASSERT_LT(*piece, total);
    EXPECT_FALSE(seen[*piece]);
    seen[*piece] = true;
  }
  EXPECT_FALSE(takeFront(desk));
  EXPECT_FALSE(takeBack(desk));
  EXPECT_EQ(deskState(desk).taken, total);
  EXPECT_EQ(deskState(desk).done, 0U);
}

TEST(CopyDeskTest, CloseLeavesOnlyWhatWasTaken) {
  CopyDesk desk{};
  openDesk(desk, 7, 0x1000, 16 << 20);
  ASSERT_TRUE(takeFront(desk));
  ASSERT_TRUE(takeBack(desk));
  closeDesk(desk);
  EXPECT_FALSE(takeFront(desk));
  EXPECT_FALSE(takeBack(desk));
  EXPECT_EQ(deskState(desk).total, 2U);
  finishPiece(desk, 0);
  finishPiece(desk, 5);
  EXPECT_EQ(deskState(desk).done, 2U);
  EXPECT_EQ(desk.error.load(), 5U);
}

TEST(CopyDeskTest, OpeningAgainForgetsTheOldMessage) {
  CopyDesk desk{};
  openDesk(desk, 7, 0x1000, 16 << 20);
  ASSERT_TRUE(takeBack(desk));
  finishPiece(desk, 14);
  openDesk(desk, 8, 0x2000, 100);
  EXPECT_EQ(desk.id.load(), 8U);
  EXPECT_EQ(desk.error.load(), 0U);
  EXPECT_EQ(deskState(desk).taken, 0U);
  EXPECT_EQ(deskState(desk).done, 0U);
  EXPECT_EQ(deskState(desk).total, 1U);
}

TEST(CopyDeskTest, MostPiecesFitTheWord) {
  CopyDesk desk{};
  const size_t length = kMaxPieces * (size_t{1} << 20);
  ASSERT_EQ(pieceCount(length), kMaxPieces);
  openDesk(desk, 1, 0, length);
  uint32_t front = 0;
  uint32_t back = 0;
  for (uint32_t i = 0; i < kMaxPieces; ++i) {
    const bool fromFront = i % 2 == 0;
    const auto piece = fromFront ? takeFront(desk) : takeBack(desk);
    ASSERT_TRUE(piece);
    ASSERT_EQ(*piece, fromFront ? front++ : kMaxPieces - ++back);
  }
  EXPECT_FALSE(takeFront(desk));
}

class CopyDeskRace : public ::testing::Test {
 protected:
  // Takes pieces from both ends, with a thread each, and counts the takes of
  // each piece.
  void race(uint32_t rounds, bool close) {
    for (uint32_t round = 0; round < rounds; ++round) {
      const size_t length = (size_t{1} << 20) * (1 + round % 40);
      openDesk(desk, round + 1, round, length);
      std::vector<std::atomic<int>> taken(pieceCount(length));
      std::thread sender([&] {
        while (const auto piece = takeBack(desk)) {
          EXPECT_EQ(desk.id.load(std::memory_order_relaxed), round + 1);
          ++taken.at(*piece);
          finishPiece(desk, 0);
        }
      });
      uint32_t own = 0;
      while (const auto piece = takeFront(desk)) {
        ++taken.at(*piece);
        finishPiece(desk, 0);
        if (close && ++own == 3) {
          closeDesk(desk);
        }
      }
      sender.join();
      check(taken, close);
    }
  }
  void check(const std::vector<std::atomic<int>>& taken, bool close) const {
    uint32_t sum = 0;
    for (const auto& count : taken) {
      ASSERT_LE(count, 1);
      sum += static_cast<uint32_t>(count);
    }
    const auto state = deskState(desk);
    EXPECT_EQ(state.total, state.taken);
    EXPECT_EQ(state.done, state.taken);
    EXPECT_EQ(sum, state.taken);
    if (!close) {
      EXPECT_EQ(sum, taken.size());
    }
  }

  CopyDesk desk{};
};

TEST_F(CopyDeskRace, EachPieceIsTakenExactlyOnce) {
  race(600, false);
}

TEST_F(CopyDeskRace, ClosingInTheMiddleLosesNoTakenPiece) {
  race(600, true);
}

} // namespace
} // namespace dlslime::shm
