#include "core/said_once.h"

#include <gtest/gtest.h>

namespace dlslime::testing {
namespace {

TEST(SaidOnceTest, TellsEachReasonOnceWhateverItsNumbers) {
  SaidOnce said;
  EXPECT_TRUE(said.isNew("4096 bytes are not enough"));
  EXPECT_FALSE(said.isNew("4096 bytes are not enough"));
  EXPECT_FALSE(said.isNew("12 bytes are not enough"));
  EXPECT_TRUE(said.isNew("12 bytes are too many"));
}

TEST(SaidOnceTest, IsBounded) {
  SaidOnce said;
  std::string reason;
  for (int i = 0; i < 64; ++i) {
    EXPECT_TRUE(said.isNew(reason += 'x'));
  }
  EXPECT_FALSE(said.isNew(reason + 'x'));
}

} // namespace
} // namespace dlslime::testing
