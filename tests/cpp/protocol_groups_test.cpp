// Which group a message belongs to, and whether it is the peer's present one.
#include <gtest/gtest.h>

#include "fakes/endpoint.h"
#include "fakes/guarded_operation.h"
#include "world.h"

namespace dlslime::testing {
namespace {

using State = Group::LinkState;

TEST(ProtocolGroups, OtherEpochIsStaleAndLooksForANewRecord) {
  Pair pair;
  auto mine = pair.end(0).join(0, 2, 1, "second");
  auto theirs = pair.end(1).join(1, 2, 2, "second");
  pair.end(0).reach(*mine, 1, pair.end(0).channels[0], theirs->id());
  EXPECT_EQ(mine->link(1).state, State::kJoining);
  pair.settle();
  EXPECT_EQ(mine->link(1).state, State::kResolving);
  EXPECT_EQ(theirs->link(0).state, State::kUnresolved);
}

TEST(ProtocolGroups, JoinOfAnotherRankOrGroupIsStale) {
  Pair pair;
  auto mine = pair.end(0).join(0, 3, 1, "second");
  auto theirs = pair.end(1).join(1, 3, 1, "second");
  // Its record said rank 2.
  pair.end(0).reach(*mine, 2, pair.end(0).channels[0], theirs->id());
  pair.end(0).reach(*mine, 1, pair.end(0).channels[0], 4711);
  pair.settle();
  EXPECT_EQ(mine->link(2).state, State::kResolving);
  EXPECT_EQ(mine->link(1).state, State::kResolving);
}

TEST(ProtocolGroups, GroupsOfOnePairKeepTheirMessagesApart) {
  Pair pair;
  auto mine = pair.end(0).join(0, 2, 1, "second");
  auto theirs = pair.end(1).join(1, 2, 1, "second");
  pair.end(0).reach(*mine, 1, pair.end(0).channels[0], theirs->id());
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

} // namespace
} // namespace dlslime::testing
