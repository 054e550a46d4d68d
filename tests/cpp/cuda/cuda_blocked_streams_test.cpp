#include "cuda/blocked_streams.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <thread>

#include "fakes/world.h"

namespace dlslime::cuda {
namespace {

using dlslime::testing::eventually;

void nothing() {}

TEST(CudaHeldStreams, NothingIsDoneWhileOneWaits) {
  BlockedStreams held;
  int done = 0;
  const auto tryIt = [&] { return held.whenNone([&] { ++done; }); };
  EXPECT_TRUE(tryIt());
  held.add(nothing);
  held.add(nothing);
  EXPECT_FALSE(tryIt());
  held.drop();
  EXPECT_FALSE(tryIt());
  held.drop();
  EXPECT_TRUE(tryIt());
  EXPECT_EQ(done, 2);
}

TEST(CudaHeldStreams, OneThatCouldNotBeMadeToWaitDoesNotCount) {
  BlockedStreams held;
  EXPECT_THROW(
      held.add([] { throw std::runtime_error("no"); }), std::runtime_error);
  EXPECT_TRUE(held.whenNone(nothing));
}

TEST(CudaHeldStreams, NoneBeginsToWaitMeanwhile) {
  BlockedStreams held;
  std::atomic<bool> inside{false}, added{false};
  std::thread other([&] {
    while (!inside) {
      std::this_thread::yield();
    }
    held.add(nothing);
    added = true;
  });
  held.whenNone([&] {
    inside = true;
    std::this_thread::sleep_for(milliseconds(20));
    EXPECT_FALSE(added);
  });
  other.join();
  EXPECT_TRUE(added);
}

// As in a pipeline, a stream is released when the next stream is blocked, or
// can't be.
TEST(CudaHeldStreams, ThoseThatFollowEachOtherWithoutAGapAreGivenOne) {
  BlockedStreams held;
  std::atomic<bool> stop{false};
  std::atomic<int> waiting{0}, begun{0}, added{0}; // begun, added: totals
  std::thread program([&] {
    while (!stop) {
      ++begun;
      held.add(nothing);
      ++waiting;
      ++added;
      std::this_thread::sleep_for(milliseconds(1));
    }
  });
  std::thread messages([&] {
    while (!stop || waiting > 0) {
      const int before = added;
      std::this_thread::sleep_for(milliseconds(2));
      const bool kept = added == before && begun > before;
      while (waiting >= (kept || stop ? 1 : 2)) {
        --waiting;
        held.drop();
      }
    }
  });
  EXPECT_TRUE(eventually([&] { return waiting > 0; }));
  EXPECT_TRUE(eventually([&] { return held.whenNone(nothing); }));
  stop = true;
  program.join();
  messages.join();
}

// The thread of the second stream goes on after a pause, and may be the thread
// that releases the first stream.
TEST(CudaHeldStreams, OneThatWaitsForEverKeepsNoThreadForEver) {
  BlockedStreams held;
  held.add(nothing);
  std::atomic<bool> stop{false};
  std::thread gpuReclaimer([&] {
    while (!stop) {
      EXPECT_FALSE(held.whenNone(nothing));
      std::this_thread::sleep_for(milliseconds(1));
    }
  });
  const auto end = deadlineAfter(milliseconds(1500)); // long enough for a pause
  while (Clock::now() < end) {
    held.add(nothing);
    held.drop();
  }
  stop = true;
  gpuReclaimer.join();
  held.drop();
  EXPECT_TRUE(held.whenNone(nothing));
}

} // namespace
} // namespace dlslime::cuda
