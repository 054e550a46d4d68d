#include <gtest/gtest.h>

#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <filesystem>

#include "fakes/status_of.h"
#include "fakes/world.h"

namespace dlslime::testing {
namespace {

// A receive whose memory keeps the engine alive, as may a tensor with a deleter
// of its own.
class EngineKeeper final : public Operation {
 public:
  explicit EngineKeeper(std::shared_ptr<Engine> engine)
      : Operation(Kind::kReceive, 1, 1, buffer()), engine_(std::move(engine)) {}

 private:
  void releaseMemory() override {
    engine_.reset();
  }
  static MemoryView buffer() {
    static std::array<std::byte, 8> bytes;
    return {bytes.data(), bytes.size()};
  }

  std::shared_ptr<Engine> engine_;
};

Node joined(
    std::shared_ptr<Engine> engine,
    int rank,
    const std::shared_ptr<MapRendezvous>& rendezvous) {
  GroupOptions options;
  options.rank = rank;
  options.size = 2;
  options.rendezvous = rendezvous;
  auto group = engine->join(std::move(options));
  return {std::move(engine), std::move(group)};
}

constexpr size_t kEagerLimit = 64 * 1024;

class EngineSizes : public ::testing::TestWithParam<size_t> {};

TEST_P(EngineSizes, MessageArrivesWhole) {
  World world(2);
  const auto bytes = pattern(GetParam());
  const auto receive = world[1].receive(0, 7, bytes.size());
  const auto send = world[0].send(1, 7, bytes);
  ASSERT_TRUE(world[1].wait(receive));
  ASSERT_TRUE(world[0].wait(send));
  EXPECT_TRUE(receive->status().ok()) << receive->status().message();
  EXPECT_TRUE(send->status().ok()) << send->status().message();
  EXPECT_EQ(receive->buffer(), bytes);
  EXPECT_EQ(receive->source(), 0);
}

INSTANTIATE_TEST_SUITE_P(
    Sizes,
    EngineSizes,
    ::testing::Values(
        0,
        1,
        63,
        64,
        65,
        511,
        513,
        kEagerLimit - 1,
        kEagerLimit,
        kEagerLimit + 1,
        1 << 20,
        (1 << 24) + 13));

TEST(EngineTest, UnexpectedMessagesKeepTheirOrder) {
  World world(2);
  for (int i = 0; i < 100; ++i) {
    world[0].send(1, 3, pattern(static_cast<size_t>(i) * 1000, 5));
  }
  for (int i = 0; i < 100; ++i) {
    const auto receive = world[1].receive(0, 3, 100000);
    ASSERT_TRUE(world[1].wait(receive));
    EXPECT_EQ(receive->bytes(), static_cast<size_t>(i) * 1000);
  }
}

TEST(EngineTest, SendToItselfMatches) {
  World world(1);
  const auto receive = world[0].receive(0, 1, 1 << 20);
  const auto send = world[0].send(0, 1, pattern(1 << 20));
  ASSERT_TRUE(world[0].wait(receive));
  ASSERT_TRUE(world[0].wait(send));
  EXPECT_EQ(receive->buffer(), send->buffer());
}

TEST(EngineTest, MessageLongerThanReceiveFailsBothEndsAndNothingIsWritten) {
  World world(2);
  const auto send = world[0].send(1, 1, pattern(1 << 20));
  const auto receive = world[1].receive(0, 1, 100000);
  ASSERT_TRUE(world[1].wait(receive));
  ASSERT_TRUE(world[0].wait(send));
  for (const auto& operation : {send, receive}) {
    EXPECT_EQ(operation->status().code(), ErrorCode::kTruncated);
    const auto& text = operation->status().message();
    EXPECT_NE(text.find("1048576"), std::string::npos) << text;
    EXPECT_NE(text.find("100000"), std::string::npos) << text;
  }
  EXPECT_EQ(receive->buffer(), Bytes(100000));
  const auto next = world[1].receive(0, 1, 10);
  world[0].send(1, 1, pattern(10));
  ASSERT_TRUE(world[1].wait(next));
  EXPECT_TRUE(next->status().ok());
}

TEST(EngineTest, CancelledReceiveLeavesItsMessageToTheNext) {
  World world(2);
  const auto late = world[1].receive(0, 1, 8);
  EXPECT_FALSE(world[1].engine->wait(*late, deadlineAfter(milliseconds(20))));
  world[1].engine->cancel(
      *world[1].group, late, Status(ErrorCode::kTimeout, "timed out"));
  ASSERT_TRUE(world[1].wait(late));
  EXPECT_EQ(late->status().code(), ErrorCode::kTimeout);
  const auto next = world[1].receive(0, 1, 8);
  world[0].send(1, 1, pattern(8));
  ASSERT_TRUE(world[1].wait(next));
  EXPECT_EQ(next->buffer(), pattern(8));
}

TEST(EngineTest, CancelledAnnouncedSendIsNeverReceived) {
  World world(2);
  const auto first = world[0].send(1, 1, pattern(1 << 20, 1));
  EXPECT_FALSE(world[0].engine->wait(*first, deadlineAfter(milliseconds(20))));
  world[0].engine->cancel(
      *world[0].group, first, Status(ErrorCode::kTimeout, "timed out"));
  ASSERT_TRUE(world[0].wait(first));
  EXPECT_EQ(first->status().code(), ErrorCode::kTimeout);
  const auto second = world[0].send(1, 1, pattern(1 << 20, 2));
  const auto receive = world[1].receive(0, 1, 1 << 20);
  ASSERT_TRUE(world[1].wait(receive));
  EXPECT_EQ(receive->buffer(), pattern(1 << 20, 2));
  ASSERT_TRUE(world[0].wait(second));
}

TEST(EngineTest, OperationsCompleteWithoutAWaitingThread) {
  World world(2);
  const auto receive = world[1].receive(0, 1, 1 << 22);
  const auto send = world[0].send(1, 1, pattern(1 << 22));
  ASSERT_TRUE(eventually([&] { return receive->done() && send->done(); }));
  EXPECT_EQ(receive->buffer(), send->buffer());
}

TEST(EngineTest, EndOfAnEngineFailsWhatItsPeersWaitFor) {
  World world(2);
  const auto first = world[1].receive(0, 1, 8);
  world[0].send(1, 1, pattern(8));
  ASSERT_TRUE(world[1].wait(first));
  const auto receive = world[1].receive(0, 1, 8);
  world[0].engine->leave(*world[0].group);
  ASSERT_TRUE(world[1].wait(receive));
  EXPECT_EQ(receive->status().code(), ErrorCode::kPeerFailed);
  const auto send = world[1].send(0, 1, pattern(8));
  ASSERT_TRUE(world[1].wait(send));
  EXPECT_EQ(send->status().code(), ErrorCode::kPeerFailed);
}

TEST(EngineTest, ThePidOfAPeerIsToldWhileItIsConnected) {
  World world(2);
  const auto problem = [&] {
    return statusOf([&] { world[1].engine->peerPid(*world[1].group, 0); });
  };
  EXPECT_TRUE(mentions(problem(), "not connected now"));
  const auto first = world[1].receive(0, 1, 8);
  world[0].send(1, 1, pattern(8));
  ASSERT_TRUE(world[1].wait(first));
  EXPECT_EQ(
      world[1].engine->peerPid(*world[1].group, 0),
      static_cast<uint32_t>(getpid()));
  world[0].engine->leave(*world[0].group);
  EXPECT_TRUE(
      eventually([&] { return problem().code() == ErrorCode::kPeerFailed; }));
}

TEST(EngineTest, EagerMessagesOutliveTheirSender) {
  World world(2);
  const auto warm = world[1].receive(0, 1, 8);
  world[0].send(1, 1, pattern(8));
  ASSERT_TRUE(world[1].wait(warm));
  ASSERT_TRUE(world[0].wait(world[0].send(1, 2, pattern(1000))));
  world[0].engine->leave(*world[0].group);
  world[0].group.reset();
  world[0].engine.reset();
  const auto receive = world[1].receive(0, 2, 1000);
  ASSERT_TRUE(world[1].wait(receive));
  EXPECT_EQ(receive->buffer(), pattern(1000));
}

#if !defined(__SANITIZE_ADDRESS__) // UBSan probes memory with a pipe
// Leaves the process no free descriptor, during its life.
class NoFreeDescriptors {
 public:
  NoFreeDescriptors() {
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    const int lowest = dup(STDIN_FILENO);
    EXPECT_GE(lowest, 0);
    close(lowest);
    auto limit = before_;
    limit.rlim_cur = static_cast<rlim_t>(lowest);
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  }
  ~NoFreeDescriptors() {
    setrlimit(RLIMIT_NOFILE, &before_);
  }
  NoFreeDescriptors(const NoFreeDescriptors&) = delete;
  NoFreeDescriptors& operator=(const NoFreeDescriptors&) = delete;

 private:
  rlimit before_{};
};

TEST(EngineTest, LackOfDescriptorsIsWaitedOut) {
  World world(2);
  BufferPtr receive, send;
  {
    const NoFreeDescriptors none;
    receive = world[1].receive(0, 1, 100);
    send = world[0].send(1, 1, pattern(100));
    EXPECT_FALSE(world[0].engine->wait(*send, milliseconds(300)));
    EXPECT_FALSE(receive->done());
  }
  ASSERT_TRUE(world[1].wait(receive) && world[0].wait(send));
  EXPECT_TRUE(receive->status().ok()) << receive->status().message();
  EXPECT_EQ(world[0].engine->report(*world[0].group)[0].route, "shm");
}
#endif

TEST(EngineTest, ItsLastHandleMayBeDroppedByAThreadOfItsOwn) {
  const auto rendezvous = std::make_shared<MapRendezvous>();
  auto sender = joined(std::make_shared<Engine>(Config()), 1, rendezvous);
  const auto threads = [] {
    const std::filesystem::directory_iterator all("/proc/self/task");
    return std::distance(begin(all), end(all));
  };
  const auto before = threads();
  auto receiver = joined(Engine::acquire(), 0, rendezvous);
  const std::weak_ptr<Engine> engine = receiver.engine;
  receiver.engine->receive(
      *receiver.group, std::make_shared<EngineKeeper>(receiver.engine));
  receiver = {};
  EXPECT_FALSE(engine.expired());
  sender.send(0, 1, pattern(8)); // the engine's own thread sees the message
  EXPECT_TRUE(eventually([&] { return engine.expired(); }));
  EXPECT_TRUE(eventually([&] { return threads() == before; }));
}

TEST(EngineTest, StreamsWhereMemoryCannotBeReadAcross) {
  Config config;
  config.crossMemoryAttach = false;
  World world(2, config);
  const auto receive = world[1].receive(0, 1, 5 << 20);
  const auto send = world[0].send(1, 1, pattern(5 << 20));
  ASSERT_TRUE(world[1].wait(receive));
  ASSERT_TRUE(world[0].wait(send));
  EXPECT_EQ(receive->buffer(), send->buffer());
  EXPECT_EQ(world[0].engine->report(*world[0].group)[0].copy, "staged");
}

} // namespace
} // namespace dlslime::testing
