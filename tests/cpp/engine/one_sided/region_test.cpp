// Regions tell once that they have been returned or opened again.
#include "engine/one_sided/region.h"

#include <gtest/gtest.h>

namespace dlslime {
namespace {

class RegionTest : public ::testing::Test {
 protected:
  void await() {
    region.onChange = [this] { ++told; };
  }

  Region region{RegionHandle(), MemoryView(), nullptr};
  int told = 0;
};

TEST_F(RegionTest, TellsOnceWhenEveryPeerAndDeviceHasReturnedIt) {
  region.lend();
  region.lend();
  region.beginRegistering();
  await();
  region.giveBack();
  region.endRegistering();
  EXPECT_FALSE(region.returned());
  EXPECT_EQ(told, 0);
  region.giveBack();
  EXPECT_TRUE(region.returned());
  EXPECT_EQ(told, 1);
  region.lend();
  region.giveBack();
  EXPECT_EQ(told, 1);
}

TEST_F(RegionTest, RegistrationThatEndsLastReturnsItToo) {
  region.beginRegistering();
  await();
  region.endRegistering();
  EXPECT_EQ(told, 1);
}

// A thread that waits for the return has to close the region again.
TEST_F(RegionTest, TellsThatItWasOpenedAgain) {
  region.lend();
  region.closing = true;
  await();
  region.reopen();
  EXPECT_FALSE(region.closing);
  EXPECT_EQ(told, 1);
}

// What is called may wait for the next change.
TEST_F(RegionTest, NextChangeCanBeAwaitedAtOnce) {
  region.lend();
  region.onChange = [this] { await(); };
  region.reopen();
  region.giveBack();
  EXPECT_EQ(told, 1);
}

} // namespace
} // namespace dlslime
