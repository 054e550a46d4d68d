#include "base/log_once.h"

#include <gtest/gtest.h>

namespace dlslime::testing {
namespace {

TEST(SaidOnceTest, TellsEachReasonOnceWhateverItsNumbers) {
  LogOnce said;
  EXPECT_TRUE(said.isNew("4096 bytes are not enough"));
  EXPECT_FALSE(said.isNew("4096 bytes are not enough"));
  EXPECT_FALSE(said.isNew("12 bytes are not enough"));
  EXPECT_TRUE(said.isNew("12 bytes are too many"));
  EXPECT_TRUE(said.isNew("no memory at 0x7f00a8"));
  EXPECT_FALSE(said.isNew("no memory at 0x1b"));
}

TEST(SaidOnceTest, TellsNamesWithNumbersApart) {
  LogOnce said;
  EXPECT_TRUE(said.isNew("mlx5_0: status 12"));
  EXPECT_TRUE(said.isNew("mlx5_3: status 12"));
  EXPECT_FALSE(said.isNew("mlx5_0: status 5"));
}

TEST(SaidOnceTest, IsBounded) {
  LogOnce said;
  std::string reason;
  for (int i = 0; i < 64; ++i) {
    EXPECT_TRUE(said.isNew(reason += 'x'));
  }
  EXPECT_FALSE(said.isNew(reason + 'x'));
}

} // namespace
} // namespace dlslime::testing
