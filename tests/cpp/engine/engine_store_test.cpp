// Groups whose store blocks, fails or dies.
#include <gtest/gtest.h>

#include "engine/peer/group.h"
#include "fakes/cluster.h"
#include "fakes/peers/scripted_store.h"
#include "fakes/status_of.h"

namespace dlslime::testing {
namespace {

// Two ranks of a group with a scripted store.
class EngineStore : public ::testing::Test {
 protected:
  std::shared_ptr<Group> join(
      int rank,
      const std::shared_ptr<Rendezvous>& through,
      milliseconds timeout = milliseconds(30000)) {
    GroupOptions options;
    options.name = "scripted";
    options.rank = rank;
    options.size = 2;
    options.timeout = timeout;
    options.rendezvous = through;
    return world[rank].engine->join(options);
  }
  std::shared_ptr<ScriptedStore> connection() {
    return std::make_shared<ScriptedStore>(content);
  }
  ::testing::AssertionResult passes(Group& from, Group& to) {
    const auto send = makeSend(1, 1, pattern(100));
    const auto receive = makeReceive(0, 1, 100);
    world[0].engine->send(from, send);
    world[1].engine->receive(to, receive);
    for (const auto& operation : {send, receive}) {
      if (!world[operation == send ? 0 : 1].wait(operation) ||
          !operation->status().ok()) {
        return ::testing::AssertionFailure() << operation->status().message();
      }
    }
    return ::testing::AssertionSuccess();
  }

  std::shared_ptr<MapRendezvous> content = std::make_shared<MapRendezvous>();
  Cluster world{2};
};

TEST_F(EngineStore, MayDieOnceAllHaveJoined) {
  std::shared_ptr<ScriptedStore> stores[2];
  std::shared_ptr<Group> groups[2];
  for (const int rank : {0, 1}) {
    stores[rank] = connection();
    groups[rank] = join(rank, stores[rank]);
  }
  for (const int rank : {0, 1}) {
    EXPECT_TRUE(eventually(
        [&] { return groups[rank]->addresses().find(1 - rank).record; }));
    stores[rank]->fail("Broken pipe");
  }
  EXPECT_TRUE(passes(*groups[0], *groups[1]));
}

TEST_F(EngineStore, ThatHangsHoldsUpNoOtherGroup) {
  const auto hanging = std::make_shared<ScriptedStore>();
  hanging->refuseOthers();
  hanging->hold();
  const auto hopeless = join(0, hanging);
  const auto send = makeSend(1, 1, pattern(8));
  world[0].engine->send(*hopeless, send);
  EXPECT_TRUE(eventually([&] { return hanging->asked() > 0; }));
  EXPECT_TRUE(world.passes(0, 1));
  EXPECT_TRUE(passes(*join(0, connection()), *join(1, connection())));
  EXPECT_FALSE(send->done());
}

TEST_F(EngineStore, ThatFailsIsNamedByWhatTimesOut) {
  const auto failing = connection();
  const auto group = join(0, failing, milliseconds(3000));
  failing->fail("Connection reset by peer");
  const auto send = makeSend(1, 1, pattern(8));
  world[0].engine->send(*group, send);
  EXPECT_TRUE(eventually([&] {
    const auto text = world[0].engine->describeLink(*group, *send);
    return text.find("Connection reset by peer") != std::string::npos;
  }));
  ASSERT_TRUE(world[0].wait(send));
  EXPECT_EQ(send->status().code(), ErrorCode::kTimeout);
  EXPECT_NE(
      send->status().message().find("Connection reset by peer"),
      std::string::npos)
      << send->status().message();
}

TEST_F(EngineStore, ThatIsLostEndsTheSearch) {
  const auto lost = connection();
  const auto group = join(0, lost, kAnHour);
  lost->fail("Broken pipe");
  const auto send = makeSend(1, 1, pattern(8));
  world[0].engine->send(*group, send);
  ASSERT_TRUE(world[0].wait(send));
  EXPECT_EQ(send->status().code(), ErrorCode::kUnavailable);
  EXPECT_TRUE(mentions(
      send->status(),
      "can't be reached: its address can't be read: Broken pipe"))
      << send->status().message();
}

} // namespace
} // namespace dlslime::testing
