// Programs that poll for the end of an operation, and never wait.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <thread>

#include "fakes/world.h"

namespace {
// Number of times the thread has yielded its core.
thread_local int yields = 0;
} // namespace

// Replaces the C library's function.
extern "C" int sched_yield() noexcept {
  ++yields;
  return static_cast<int>(syscall(SYS_sched_yield));
}

namespace dlslime::testing {
namespace {

// A polling thread yields as a waiting thread does: on a shared core only a
// yield lets the peer run.
TEST(EnginePolled, ThreadThatAsksInVainYieldsTheCore) {
  constexpr int kLooks = 2000, kFewest = 20;
  World world(2);
  const auto receive = world[0].receive(1, 1, 8);
  ASSERT_TRUE(world[1].wait(world[1].send(0, 2, pattern(8)))); // connects
  const int before = yields;
  for (int i = 0; i < kLooks; ++i) {
    world[0].engine->poke();
  }
  EXPECT_GE(yields - before, kFewest) << "of " << kLooks << " looks";
  EXPECT_FALSE(receive->done());
}

// Finding news costs no yield, except when the background thread has the lock.
TEST(EnginePolled, ThreadThatFindsNewsSeldomYields) {
  constexpr uint32_t kMessages = 64;
  World world(2);
  ASSERT_TRUE(world[1].wait(world[1].send(0, 1, pattern(8))));
  ASSERT_TRUE(world[0].wait(world[0].receive(1, 1, 8)));
  int yielding = 0;
  for (uint32_t i = 0; i < kMessages; ++i) {
    const auto receive = world[0].receive(1, 1, 8);
    world[1].send(0, 1, pattern(8, i));
    const int before = yields;
    while (!receive->done()) {
      world[0].engine->poke();
    }
    yielding += yields - before > 2 ? 1 : 0;
    EXPECT_EQ(receive->buffer(), pattern(8, i));
  }
  EXPECT_LE(yielding, int(kMessages) / 2);
}

} // namespace
} // namespace dlslime::testing
