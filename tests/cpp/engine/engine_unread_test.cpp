// Messages of guests of a hub that have been acknowledged, but not read by the
// hub's owner.
#include <gtest/gtest.h>

#include "engine/hub.h"
#include "fakes/log_capture.h"
#include "fakes/peers/endpoint.h"
#include "fakes/peers/test_transfer.h"
#include "fakes/world.h"

namespace dlslime::testing {
namespace {

constexpr uint32_t kTag = 5;

Config keeping(size_t bytes) {
  Config config;
  config.unexpectedLimitBytes = bytes;
  return config;
}

// A process that comes to a hub and sends a message.
struct Visitor {
  Visitor(std::shared_ptr<Engine> from, const Hub& hub)
      : engine(std::move(from)), endpoint(engine, named("visitor")) {
    endpoint.connect(hub.address());
  }
  static dlslime::Endpoint::Options named(const char* name) {
    dlslime::Endpoint::Options options;
    options.name = name;
    return options;
  }
  // Returns ok when the message is acknowledged.
  Status tell(size_t bytes, unsigned seed) {
    const auto sent = makeSend(endpoint.peer(), kTag, pattern(bytes, seed));
    engine->send(*endpoint.group(), sent);
    if (!engine->wait(*sent, deadlineAfter(milliseconds(20000)))) {
      return {ErrorCode::kTimeout, "it was neither taken nor refused"};
    }
    return sent->status();
  }

  std::shared_ptr<Engine> engine;
  dlslime::Endpoint endpoint;
};

class EngineUnread : public ::testing::Test {
 protected:
  void open(size_t limit = Config{}.unexpectedLimitBytes) {
    here = std::make_shared<Engine>(keeping(limit));
    hub = std::make_unique<Hub>(here, dlslime::Endpoint::Options{});
  }
  ~EngineUnread() override {
    for (const auto& guest : acceptQueue) {
      here->leave(*guest);
    }
  }
  void look() { // sees all arrivals, on whichever thread
    for (int i = 0; i < 100; ++i) {
      here->poke();
    }
  }
  size_t takeAll(size_t expected) {
    eventually(
        [&] {
          here->poke();
          for (auto& guest : hub->accept()) {
            acceptQueue.push_back(std::move(guest));
          }
          return acceptQueue.size() >= expected;
        },
        3);
    return acceptQueue.size();
  }
  ::testing::AssertionResult holds(Group& guest, size_t bytes, unsigned seed) {
    const auto received = makeReceive(1, kTag, bytes);
    here->receive(guest, received);
    if (!here->wait(*received, deadlineAfter(milliseconds(10000)))) {
      return ::testing::AssertionFailure() << "nothing is there";
    }
    return received->status().ok() && received->buffer() == pattern(bytes, seed)
        ? ::testing::AssertionSuccess()
        : ::testing::AssertionFailure() << received->status().message();
  }

  LogCapture log;
  std::shared_ptr<Engine> here;
  std::unique_ptr<Hub> hub;
  std::vector<std::shared_ptr<Group>> acceptQueue;
};

TEST_F(EngineUnread, OutlivesItsSenderWhenTheNextOneComes) {
  open();
  {
    Visitor first(std::make_shared<Engine>(Config{}), *hub);
    ASSERT_TRUE(first.tell(1000, 1).ok());
  }
  look();
  Visitor second(std::make_shared<Engine>(Config{}), *hub);
  ASSERT_TRUE(second.tell(1000, 2).ok());
  ASSERT_EQ(takeAll(2), 2U) << "a guest that has left is forgotten";
  EXPECT_TRUE(holds(*acceptQueue[0], 1000, 1));
  EXPECT_TRUE(holds(*acceptQueue[1], 1000, 2));
}

TEST_F(EngineUnread, IsInTheOrderInWhichTheSameOneCameAgain) {
  open();
  const auto other = std::make_shared<Engine>(Config{});
  for (unsigned i = 0; i < 5; ++i) {
    Visitor visitor(other, *hub);
    ASSERT_TRUE(visitor.tell(100, i).ok());
    ASSERT_TRUE(visitor.tell(100, i + 10).ok());
  }
  ASSERT_EQ(takeAll(5), 5U) << "a guest that has left is forgotten";
  for (unsigned i = 0; i < 5; ++i) {
    EXPECT_TRUE(holds(*acceptQueue[i], 100, i)) << i;
    EXPECT_TRUE(holds(*acceptQueue[i], 100, i + 10)) << i;
  }
}

TEST_F(EngineUnread, GuestsThatHaveLeftNothingAreForgotten) {
  open();
  for (int i = 0; i < 20; ++i) {
    const auto other = std::make_shared<Engine>(Config{});
    Visitor visitor(other, *hub);
    other->explain(
        *visitor.endpoint.group(),
        visitor.endpoint.peer(),
        deadlineAfter(milliseconds(10000)));
  }
  // The hub's own group, and at most two guests whose end is not known yet.
  EXPECT_TRUE(eventually([&] {
    const auto other = std::make_shared<Engine>(Config{});
    Visitor visitor(other, *hub);
    other->explain(
        *visitor.endpoint.group(),
        visitor.endpoint.peer(),
        deadlineAfter(milliseconds(10000)));
    here->poke();
    return here->groups() <= 3;
  }));
}

// A guest that exceeds the limit is refused, and no acknowledged message is
// dropped to make room.
TEST_F(EngineUnread, IsBoundedInBytesAndTheNextOneIsTold) {
  constexpr size_t kEach = 60'000;
  open(1'000'000);
  unsigned taken = 0;
  Status refused;
  while (taken < 64 && refused.ok()) {
    Visitor visitor(std::make_shared<Engine>(keeping(1'000'000)), *hub);
    refused = visitor.tell(kEach, taken);
    taken += refused.ok() ? 1 : 0;
    visitor.endpoint.leave();
    look();
  }
  EXPECT_GE(taken, 5U);
  ASSERT_LT(taken, 64U) << "nothing bounds what is kept";
  EXPECT_EQ(refused.code(), ErrorCode::kPeerFailed) << refused.message();
  EXPECT_EQ(refused.message().find("closed"), std::string::npos)
      << refused.message();
  EXPECT_NE(refused.message().find("read"), std::string::npos)
      << refused.message();
  ASSERT_EQ(takeAll(taken), taken);
  for (unsigned i = 0; i < taken; ++i) {
    EXPECT_TRUE(holds(*acceptQueue[i], kEach, i)) << i;
  }
  Visitor next(std::make_shared<Engine>(Config{}), *hub);
  EXPECT_TRUE(next.tell(kEach, 1).ok()) << "there is room again";
}

// The bytes waiting for a process's guests are limited, and count no more when
// the guests are gone: else later messages would wait for ever.
TEST_F(EngineUnread, ReturnsItsRoomToTheSender) {
  open(200'000);
  const auto other = std::make_shared<Engine>(keeping(200'000));
  for (unsigned i = 0; i < 20; ++i) {
    Visitor visitor(other, *hub);
    const auto told = visitor.tell(60'000, i);
    ASSERT_TRUE(told.ok()) << "visit " << i << ": " << told.message();
    visitor.endpoint.leave();
    look();
    if (i % 2 == 1) {
      for (const auto& guest : hub->accept()) {
        here->leave(*guest);
      }
    }
  }
}

// A transfer ends only when the note is with the peer, so that a process may
// leave at the end of the transfer.
TEST(TransferNote, TransferIsNotOverBeforeItsNoteIsWithThePeer) {
  constexpr size_t kBytes = 4096;
  Pair pair({}, {1000, 300}); // room for two notes at the peer
  Bytes memory[2] = {pattern(kBytes, 1), pattern(kBytes, 2)};
  RegionPtr regions[2];
  for (int end = 0; end < 2; ++end) {
    regions[end] = pair.end(end).regions.add(
        {memory[end].data(), kBytes}, "memory", nullptr);
  }
  std::vector<TestTransferPtr> writes;
  for (uint32_t i = 0; i < 4; ++i) {
    const auto at = static_cast<int64_t>(i) * 100;
    writes.push_back(TestTransfer::writeTo(
        1, regions[0], regions[1]->handle(), {{at, at, 100}}));
    writes.back()->note = makeSend(1, kTag, pattern(8, i));
    pair.send(0, writes.back());
  }
  pair.settle();
  const auto done = [&] {
    return std::count_if(writes.begin(), writes.end(), [](const auto& write) {
      return write->done();
    });
  };
  EXPECT_LT(done(), 4) << "notes that wait for room are not with the peer";
  const auto acknowledged = done();
  for (uint32_t i = 0; i < 4; ++i) {
    const auto note = makeReceive(0, kTag, 8);
    pair.receive(1, note);
    pair.settle();
    ASSERT_TRUE(note->done()) << i;
    EXPECT_EQ(note->buffer(), pattern(8, i));
  }
  EXPECT_GE(acknowledged, 1);
  EXPECT_EQ(done(), 4);
}

TEST(TransferNote, TransferWhoseNoteIsLostHasFailed) {
  constexpr size_t kBytes = 4096;
  Pair pair({}, {1000, 0}); // notes are announced
  Bytes memory[2] = {pattern(kBytes, 1), pattern(kBytes, 2)};
  RegionPtr regions[2];
  for (int end = 0; end < 2; ++end) {
    regions[end] = pair.end(end).regions.add(
        {memory[end].data(), kBytes}, "memory", nullptr);
  }
  const auto write =
      TestTransfer::writeTo(1, regions[0], regions[1]->handle(), {{0, 0, 100}});
  write->note = makeSend(1, kTag, pattern(8));
  pair.send(0, write);
  pair.settle();
  pair.channel(0).fail(Status(ErrorCode::kPeerFailed, "on purpose"));
  pair.end(0).settle();
  ASSERT_TRUE(write->done());
  EXPECT_FALSE(write->status().ok()) << "the peer has not been told";
}

} // namespace
} // namespace dlslime::testing
