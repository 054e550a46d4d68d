#include "engine/state/closer.h"

#include <gtest/gtest.h>

#include <thread>

#include "engine/state/engine_lock.h"
#include "engine/state/engine_state.h"
#include "fakes/peers/scripted_connection.h"

namespace dlslime::testing {
namespace {

class CloserTest : public ::testing::Test {
 protected:
  using OnClose = std::function<bool(bool atOnce)>;

  // Retires a failed channel; the result expires with the channel's connection.
  std::weak_ptr<int> retire(const OnClose& onClose) {
    const auto life = std::make_shared<int>(0);
    auto connection = std::make_unique<ScriptedConnection>();
    connection->onClose = [life, onClose](bool atOnce) {
      return onClose(atOnce);
    };
    const auto channel = state.makeChannel({}, 1 << 20);
    const EngineLock lock(state);
    channel->connected(std::move(connection), {});
    channel->fail(Status(ErrorCode::kPeerFailed, "the peer is gone"));
    state.channels.add({Bytes(++channels)}, {}, channel, std::nullopt);
    state.retireFailed();
    return life;
  }

  EngineState state{Config{}};
  size_t channels = 0;
};

TEST_F(CloserTest, OneThatGoesOnKeepsNoOtherFromItsEnd) {
  int looks = 0;
  const auto slow = retire([&](bool atOnce) {
    ++looks;
    return atOnce;
  });
  const auto quick = retire([](bool /*atOnce*/) { return true; });
  state.closer.advance();
  EXPECT_FALSE(slow.expired());
  EXPECT_TRUE(quick.expired());
  EXPECT_GE(looks, 1);
  EXPECT_NE(state.closer.next(), never());
  const auto later = retire([](bool /*atOnce*/) { return true; });
  state.closer.advance();
  EXPECT_TRUE(later.expired());
  state.closer.finish();
  EXPECT_TRUE(slow.expired());
  EXPECT_EQ(state.closer.next(), never());
}

TEST_F(CloserTest, WhatIsUnderWayIsWaitedFor) {
  bool sent = false;
  const auto gone = retire([&](bool atOnce) {
    EXPECT_FALSE(atOnce);
    return std::exchange(sent, true);
  });
  state.closer.finish();
  EXPECT_TRUE(gone.expired());
}

TEST_F(CloserTest, PatienceEnds) {
  const auto gone = retire([](bool atOnce) { return atOnce; });
  const auto begun = Clock::now();
  while (!gone.expired()) {
    state.closer.advance();
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_GE(Clock::now() - begun, Closer::kPatience);
}

// One by one, a second for each would make an exit last minutes.
TEST_F(CloserTest, AllAreWaitedForAtTheSameTime) {
  int atOnce = 0;
  int open = 20;
  for (int i = 0; i < 20; ++i) {
    retire([&, last = false](bool now) mutable {
      atOnce += static_cast<int>(now);
      open -= static_cast<int>(!std::exchange(last, true));
      return now || open == 0;
    });
  }
  state.closer.finish();
  EXPECT_EQ(atOnce, 0) << "some were first looked at when others were over";
}

} // namespace
} // namespace dlslime::testing
