// Hubs: processes that connect without being known.
#include <gtest/gtest.h>

#include "engine/hub.h"
#include "fakes/log_capture.h"
#include "fakes/peers/one_sided.h"
#include "fakes/verbs/rdma_hosts.h"

namespace dlslime::testing {
namespace {

class EngineHub : public ::testing::Test {
 protected:
  static std::shared_ptr<Engine> engine() {
    return std::make_shared<Engine>(Config{});
  }
  // Returns the next guest.
  std::shared_ptr<Group> guest() {
    std::vector<std::shared_ptr<Group>> acceptQueue;
    EXPECT_TRUE(eventually([&] {
      here->poke();
      acceptQueue = hub.accept();
      return !acceptQueue.empty();
    }));
    EXPECT_EQ(acceptQueue.size(), 1U);
    return acceptQueue.empty() ? nullptr : acceptQueue[0];
  }
  std::unique_ptr<Endpoint> come(const std::shared_ptr<Engine>& from) {
    auto endpoint = std::make_unique<Endpoint>(from, Endpoint::Options{});
    endpoint->connect(hub.address());
    return endpoint;
  }
  static std::shared_ptr<BufferOperation>
  send(Engine& engine, Group& group, int peer, unsigned seed) {
    auto operation = makeSend(peer, 5, pattern(1000, seed));
    engine.send(group, operation);
    return operation;
  }
  static ::testing::AssertionResult
  arrives(Engine& engine, Group& group, int peer, unsigned seed) {
    const auto operation = makeReceive(peer, 5, 1000);
    engine.receive(group, operation);
    if (!engine.wait(*operation, deadlineAfter(milliseconds(10000)))) {
      return ::testing::AssertionFailure() << "nothing comes";
    }
    return operation->status().ok() &&
            operation->buffer() == pattern(1000, seed)
        ? ::testing::AssertionSuccess()
        : ::testing::AssertionFailure() << operation->status().message();
  }

  LogCapture log;
  std::shared_ptr<Engine> here = engine();
  Hub hub{here, {}};
};

TEST_F(EngineHub, EachGuestIsTheOtherEndOfAPairOfItsOwn) {
  const auto one = engine(), other = engine();
  const auto first = come(one), second = come(other);
  send(*one, *first->group(), first->peer(), 1);
  const auto guestOne = guest();
  send(*other, *second->group(), second->peer(), 2);
  const auto guestTwo = guest();
  ASSERT_TRUE(guestOne && guestTwo);
  EXPECT_TRUE(arrives(*here, *guestTwo, 1, 2));
  EXPECT_TRUE(arrives(*here, *guestOne, 1, 1));
  send(*here, *guestOne, 1, 3);
  send(*here, *guestTwo, 1, 4);
  EXPECT_TRUE(arrives(*other, *second->group(), second->peer(), 4));
  EXPECT_TRUE(arrives(*one, *first->group(), first->peer(), 3));
  here->leave(*guestOne);
  here->leave(*guestTwo);
}

TEST_F(EngineHub, OneProcessComesTwiceAndFromItself) {
  const auto other = engine();
  for (const auto& from : {other, other, here}) {
    const auto endpoint = come(from);
    send(*from, *endpoint->group(), endpoint->peer(), 7);
    const auto came = guest();
    ASSERT_TRUE(came);
    EXPECT_TRUE(arrives(*here, *came, 1, 7));
    here->leave(*came);
  }
}

TEST_F(EngineHub, MemoryIsReadByGuestsThatAreNotAccepted) {
  Node reader{engine(), nullptr};
  const auto endpoint = come(reader.engine);
  reader.group = endpoint->group();
  Node owner{here, nullptr};
  OneSided ours(reader, 100000, 1), theirs(owner, 100000, 2);
  ASSERT_TRUE(ours.done(ours.read(endpoint->peer(), theirs, {{0, 50, 90000}})));
  EXPECT_TRUE(ours.same(theirs, 0, 50, 90000));
}

TEST_F(EngineHub, AClosedHubTakesNoNewGuestsAndKeepsTheOthers) {
  const auto one = engine(), late = engine();
  const auto first = come(one);
  send(*one, *first->group(), first->peer(), 1);
  const auto came = guest();
  ASSERT_TRUE(came);
  const auto second = come(late);
  hub.leave();
  const auto refused = send(*late, *second->group(), second->peer(), 2);
  ASSERT_TRUE(late->wait(*refused, deadlineAfter(milliseconds(10000))));
  EXPECT_EQ(refused->status().code(), ErrorCode::kPeerFailed);
  EXPECT_TRUE(arrives(*here, *came, 1, 1));
  here->leave(*came);
}

TEST_F(EngineHub, AGuestThatLeavesIsSeen) {
  const auto other = engine();
  auto endpoint = come(other);
  send(*other, *endpoint->group(), endpoint->peer(), 1);
  const auto came = guest();
  ASSERT_TRUE(came);
  EXPECT_TRUE(arrives(*here, *came, 1, 1));
  const auto never = makeReceive(1, 6, 100);
  here->receive(*came, never);
  endpoint->leave();
  ASSERT_TRUE(here->wait(*never, deadlineAfter(milliseconds(10000))));
  EXPECT_EQ(never->status().code(), ErrorCode::kPeerFailed);
  here->leave(*came);
}

} // namespace
} // namespace dlslime::testing
