#include "engine/connect/replacement.h"

#include "fakes/peers/old_channel.h"
#include "fakes/peers/scripted_connection.h"

namespace dlslime::testing {
namespace {

const Status kBroken(ErrorCode::kTransportFailed, "broken on purpose");

class ReplacementTest : public OldChannel {
 protected:
  using Step = Replacement::Step;

  // Adds a channel over a connection that does as the test says.
  ScriptedConnection& addScripted() {
    auto made = std::make_unique<ScriptedConnection>();
    auto& connection = *made;
    add(std::move(made));
    return connection;
  }
  // Asks for the peer, whose hello has only `replaces`.
  Replacement ask(uint32_t replaces) {
    Hello hello;
    hello.replaces = replaces;
    return decideReplacement(state, key, hello);
  }
  void expectRefusal(uint32_t replaces, Verdict verdict, const char* text) {
    const auto decided = ask(replaces);
    EXPECT_EQ(decided.step, Step::kRefuse);
    EXPECT_EQ(decided.refusal.verdict, verdict);
    EXPECT_NE(decided.refusal.text.find(text), std::string::npos)
        << decided.refusal.text;
  }
  bool isOpen() {
    const EngineLock lock(state);
    return channel->open() && !socketOfPeer->ended();
  }
};

TEST_F(ReplacementTest, FirstConnectionOfAPairIsToBeMade) {
  EXPECT_EQ(ask(0).step, Step::kConnect);
}

TEST_F(ReplacementTest, FirstConnectionOfAPairThatHasAChannelCrosses) {
  addWired();
  const auto decided = ask(0);
  EXPECT_EQ(decided.step, Step::kRefuse);
  EXPECT_EQ(decided.refusal.verdict, Verdict::kCrossed);
  EXPECT_TRUE(decided.refusal.text.empty()) << decided.refusal.text;
  EXPECT_TRUE(isOpen());
}

TEST_F(ReplacementTest, PairWithoutAChannelIsAStranger) {
  expectRefusal(1, Verdict::kStranger, "is given up");
}

TEST_F(ReplacementTest, ChannelOfAnotherPolicyIsAnotherPairs) {
  addWired();
  key.policy = RoutePolicy::kShm;
  expectRefusal(1, Verdict::kStranger, "is given up");
  EXPECT_EQ(ask(0).step, Step::kConnect);
  EXPECT_TRUE(isOpen());
}

TEST_F(ReplacementTest, FailedChannelIsNotReplacedButFollowedByANewOne) {
  addWired();
  {
    const EngineLock lock(state);
    channel->fail(kBroken);
  }
  expectRefusal(1, Verdict::kStranger, "is given up");
  EXPECT_EQ(ask(0).step, Step::kConnect);
}

TEST_F(ReplacementTest, WorkingConnectionIsGivenUpWithItsSocket) {
  addWired();
  EXPECT_EQ(ask(1).step, Step::kConnect);
  EXPECT_TRUE(socketOfPeer->ended());
  const EngineLock lock(state);
  EXPECT_TRUE(channel->awaitsConnection());
  EXPECT_TRUE(channel->connection().leftWhole());
}

TEST_F(ReplacementTest, BrokenConnectionIsReplaced) {
  addWired();
  {
    const EngineLock lock(state);
    ASSERT_TRUE(channel->sever(kBroken));
  }
  EXPECT_EQ(ask(1).step, Step::kConnect);
  const EngineLock lock(state);
  EXPECT_TRUE(channel->awaitsConnection());
}

// The first attempt may come to nothing after this decision.
TEST_F(ReplacementTest, PeerThatAsksAgainIsToBeConnected) {
  addWired();
  EXPECT_EQ(ask(1).step, Step::kConnect);
  EXPECT_EQ(ask(1).step, Step::kConnect);
}

TEST_F(ReplacementTest, ConnectionThatIsReplacedAlreadyCrosses) {
  addWired();
  ASSERT_EQ(ask(1).step, Step::kConnect);
  {
    const EngineLock lock(state);
    auto second = std::make_unique<ScriptedConnection>();
    second->when = ReplaceAbility::When::kWhole;
    channel->resumed(std::move(second), {}, 2, 0, false);
  }
  expectRefusal(1, Verdict::kCrossed, "");
  {
    const EngineLock lock(state);
    EXPECT_TRUE(channel->open());
  }
  EXPECT_EQ(ask(2).step, Step::kConnect);
}

TEST_F(ReplacementTest, ConnectionIsKeptUntilItCanBeReplaced) {
  auto& connection = addScripted();
  expectRefusal(
      1, Verdict::kRefused, "the old connection can't be replaced now");
  EXPECT_TRUE(isOpen());
  connection.when = ReplaceAbility::When::kWhole;
  EXPECT_EQ(ask(1).step, Step::kConnect);
}

TEST_F(ReplacementTest, MessagesOfTheOldConnectionAreAllReadFirst) {
  addWired();
  fill(2 * kMessagesPerPoll + 1);
  for (int looks = 1; looks <= 2; ++looks) {
    EXPECT_EQ(ask(1).step, Step::kReadOn);
    EXPECT_EQ(lastSeen(), static_cast<uint64_t>(looks * kMessagesPerPoll));
    EXPECT_FALSE(socketOfPeer->ended());
  }
  EXPECT_EQ(ask(1).step, Step::kConnect);
  EXPECT_EQ(lastSeen(), sequence);
  EXPECT_TRUE(socketOfPeer->ended());
}

TEST_F(ReplacementTest, PeerThatSendsOnIsReadOnAsOftenAsItAsks) {
  addWired();
  for (int i = 1; i <= 10; ++i) {
    fill(kMessagesPerPoll + 1);
    EXPECT_EQ(ask(1).step, Step::kReadOn);
    EXPECT_EQ(lastSeen(), static_cast<uint64_t>(i * kMessagesPerPoll));
  }
}

// Closing may mean joining threads, which may still touch memory.
TEST_F(ReplacementTest, OldConnectionThatIsNotYetClosedIsWaitedFor) {
  bool closed = false;
  auto& connection = addScripted();
  connection.when = ReplaceAbility::When::kWhole;
  connection.onClose = [&closed](bool /*atOnce*/) { return closed; };
  EXPECT_EQ(ask(1).step, Step::kReadOn);
  EXPECT_EQ(ask(1).step, Step::kReadOn);
  EXPECT_FALSE(socketOfPeer->ended());
  closed = true;
  EXPECT_EQ(ask(1).step, Step::kConnect);
  EXPECT_TRUE(socketOfPeer->ended());
}

TEST_F(ReplacementTest, ChannelThatFailsAmongTheLastMessagesIsAStranger) {
  addWired();
  fill(1, static_cast<MessageType>(200));
  expectRefusal(1, Verdict::kStranger, "a message of type 200");
  EXPECT_EQ(ask(0).step, Step::kConnect);
}

} // namespace
} // namespace dlslime::testing
