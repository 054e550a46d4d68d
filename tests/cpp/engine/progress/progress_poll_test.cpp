// Programs that ask again and again whether something is done, and never wait
// for it.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <thread>

#include "fakes/world.h"

namespace {
// How often this thread has given its core to others.
thread_local int yields = 0;
} // namespace

// The tests' own takes the place of the C library's.
extern "C" int sched_yield() noexcept {
  ++yields;
  return static_cast<int>(syscall(SYS_sched_yield));
}

namespace dlslime::testing {
namespace {

// As threads that wait: on a core that is shared it is what lets the peer run.
TEST(EnginePolled, WhoAsksInVainGivesOthersTheCore) {
  constexpr int kLooks = 2000, kFewest = 20;
  World world(2);
  const auto receive = world[0].receive(1, 1, 8);
  ASSERT_TRUE(world[1].wait(world[1].send(0, 2, pattern(8)))); // connected
  const int before = yields;
  for (int i = 0; i < kLooks; ++i) {
    world[0].engine->poke();
  }
  EXPECT_GE(yields - before, kFewest) << "of " << kLooks << " looks";
  EXPECT_FALSE(receive->done());
}

// What is there already costs no yield; now and then the other thread has the
// lock.
TEST(EnginePolled, WhoFindsNewsSeldomYields) {
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
