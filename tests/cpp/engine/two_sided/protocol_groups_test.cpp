// The group of a message, and whether the group is the peer's current
// incarnation.
#include <gtest/gtest.h>

#include "fakes/guarded_operation.h"
#include "fakes/peers/endpoint.h"
#include "fakes/world.h"

namespace dlslime::testing {
namespace {

using State = Group::LinkState;

// Two processes with a second group of `size`, beside the pair's first.
class ProtocolGroups : public ::testing::Test {
 protected:
  void join(int size, uint64_t theirEpoch = 1) {
    mine = pair.end(0).join(0, size, 1, "second");
    theirs = pair.end(1).join(1, size, theirEpoch, "second");
  }
  // Makes end 0 believe that the peer is `rank`, and names the group `id`.
  void reach(int rank, uint32_t id) {
    pair.end(0).reach(*mine, rank, pair.end(0).channels[0], id);
  }

  Pair pair;
  std::shared_ptr<Group> mine, theirs;
};

TEST_F(ProtocolGroups, OtherEpochIsStaleAndLooksForANewRecord) {
  join(2, 2);
  reach(1, theirs->id());
  EXPECT_EQ(mine->link(1).state, State::kJoining);
  pair.settle();
  EXPECT_EQ(mine->link(1).state, State::kResolving);
  EXPECT_EQ(theirs->link(0).state, State::kUnresolved);
}

TEST_F(ProtocolGroups, JoinOfAnotherRankOrGroupIsStale) {
  join(3);
  reach(2, theirs->id()); // as if by the record
  reach(1, 4711);
  pair.settle();
  EXPECT_EQ(mine->link(2).state, State::kResolving);
  EXPECT_EQ(mine->link(1).state, State::kResolving);
}

TEST_F(ProtocolGroups, GroupsOfOnePairKeepTheirMessagesApart) {
  join(2);
  reach(1, theirs->id());
  pair.settle();
  EXPECT_EQ(theirs->link(0).state, State::kReady);
  const auto first = GuardedOperation::receive(0, 0, 100);
  pair.receive(1, first);
  const auto second = GuardedOperation::receive(0, 0, 100);
  pair.end(1).receive(*theirs, second);
  pair.end(0).send(*mine, GuardedOperation::send(1, 0, pattern(60)));
  pair.settle();
  EXPECT_FALSE(first->done());
  ASSERT_TRUE(second->done());
  EXPECT_EQ(second->bytes(), 60U);
  pair.cancel(1, first);
}

TEST_F(ProtocolGroups, RankThatLeavesBeforeItIsAMemberSaysSo) {
  join(2);
  reach(1, theirs->id());
  const auto receive = GuardedOperation::receive(0, 0, 100);
  theirs->post(receive);
  pair.end(0).groupRegistry.remove(*mine); // with a join on the way
  pair.settle();
  EXPECT_EQ(theirs->link(0).state, State::kFailed);
  ASSERT_TRUE(receive->done());
  EXPECT_EQ(receive->status().code(), ErrorCode::kPeerFailed);
}

} // namespace
} // namespace dlslime::testing
