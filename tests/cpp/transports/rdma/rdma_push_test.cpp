// Messages written straight into the memory of a posted receive.
#include <gtest/gtest.h>

#include <algorithm>
#include <climits>

#include "fakes/cluster.h"
#include "fakes/log_capture.h"
#include "fakes/owned_memory.h"
#include "fakes/verbs/fake_verbs.h"
#include "fakes/verbs/rdma_hosts.h"

namespace dlslime::testing {
namespace {

using Kind = Operation::Kind;
using OwnedPtr = std::shared_ptr<OwnedOperation>;
constexpr size_t kSize = 256 * 1024;

// Two hosts; rank 0 sends, rank 1 receives.
class RdmaPush : public ::testing::Test {
 protected:
  void SetUp() override {
    world.emplace(
        2,
        [this](int rank) {
          auto config = rdmaHost(rank);
          config.recovery = recovery;
          return config;
        },
        byRdmaAlone);
    ASSERT_TRUE(world->passes(0, 1)); // connects
  }
  OwnedPtr post(Kind kind, const std::shared_ptr<OwnedMemory>& memory) {
    auto& node = (*world)[kind == Kind::kSend ? 0 : 1];
    auto operation = std::make_shared<OwnedOperation>(
        kind, kind == Kind::kSend ? 1 : 0, 7, memory);
    kind == Kind::kSend ? node.engine->send(*node.group, operation)
                        : node.engine->receive(*node.group, operation);
    return operation;
  }
  // Posts a receive, whose Rtr the sender sees before sending.
  OwnedPtr postReceive() {
    std::memset(target->view().data, 0, target->view().size);
    return post(Kind::kReceive, target);
  }
  OwnedPtr postSend(unsigned seed) {
    const auto bytes = pattern(source->view().size, seed);
    std::copy(bytes.begin(), bytes.end(), source->view().data);
    return post(Kind::kSend, source);
  }
  bool ended(const OwnedPtr& operation) {
    auto& node = (*world)[operation->kind() == Kind::kSend ? 0 : 1];
    return node.engine->wait(*operation, deadlineAfter(milliseconds(20000)));
  }
  bool holds(const std::shared_ptr<OwnedMemory>& memory, unsigned seed) {
    const auto bytes = pattern(source->view().size, seed);
    return std::equal(bytes.begin(), bytes.end(), memory->view().data);
  }
  Counters counters() {
    auto& node = (*world)[0];
    return node.engine->report(*node.group).at(0).counters;
  }

  milliseconds recovery{100};
  LogCapture log;
  AuditedFabric fabric{{nicOf(0), nicOf(1)}};
  std::optional<Cluster> world;
  std::shared_ptr<OwnedMemory> source = std::make_shared<OwnedMemory>(kSize);
  std::shared_ptr<OwnedMemory> target = std::make_shared<OwnedMemory>(kSize);
};

TEST_F(RdmaPush, MessageForAPostedReceiveIsOneWrite) {
  for (unsigned round = 1; round <= 5; ++round) {
    const auto receive = postReceive();
    const auto before = fabric.requests(IBV_WR_RDMA_WRITE_WITH_IMM);
    const auto send = postSend(round);
    ASSERT_TRUE(ended(receive) && ended(send));
    ASSERT_TRUE(receive->status().ok() && send->status().ok());
    EXPECT_TRUE(holds(target, round));
    EXPECT_EQ(receive->bytes(), kSize);
    EXPECT_EQ(fabric.requests(IBV_WR_RDMA_WRITE_WITH_IMM), before + 1);
  }
  EXPECT_EQ(fabric.requests(IBV_WR_RDMA_READ), 1U) << "but the greeting's";
  EXPECT_EQ(counters().pushedMessages, 5U);
}

TEST_F(RdmaPush, SmallMessagesArePushedWhenTheirMemoryIsKnown) {
  source->replace(64 * 1024);
  target->replace(64 * 1024);
  for (unsigned round = 1; round <= 4; ++round) {
    const auto receive = postReceive();
    const auto send = postSend(round);
    ASSERT_TRUE(ended(receive) && ended(send));
    EXPECT_TRUE(holds(target, round));
  }
  EXPECT_EQ(counters().pushedMessages, 3U);
}

// Registering must not wait for the message, since the engine's lock is held
// then.
TEST_F(RdmaPush, MemoryForAnySourceIsRegisteredByThePostingThread) {
  const auto receive = std::make_shared<OwnedOperation>(
      Kind::kReceive, Operation::kAnySource, 7, target);
  auto& node = (*world)[1];
  node.engine->receive(*node.group, receive);
  EXPECT_NE(receive->prepared, nullptr);
  const auto send = postSend(1);
  ASSERT_TRUE(ended(receive) && ended(send));
  EXPECT_TRUE(holds(target, 1));
}

// No thread polls any more when the connection is destroyed.
TEST_F(RdmaPush, EngineThatEndsMeanwhileEndsIt) {
  const auto receive = postReceive();
  fabric.delay(INT_MAX);
  const auto send = postSend(1);
  ASSERT_TRUE(eventually([&] { return counters().pushedMessages == 1; }));
  world->stop(0);
  EXPECT_EQ(send->stage, Operation::Stage::kDone);
  EXPECT_FALSE(send->status().ok());
  fabric.delay(0);
}

TEST_F(RdmaPush, MessageThatComesBeforeTheReceiveIsRead) {
  const auto send = postSend(1);
  EXPECT_TRUE(eventually([&] { return counters().rendezvousMessages == 1; }));
  const auto receive = postReceive();
  ASSERT_TRUE(ended(receive) && ended(send));
  EXPECT_TRUE(holds(target, 1));
  EXPECT_EQ(counters().pushedMessages, 0U);
  EXPECT_GT(fabric.requests(IBV_WR_RDMA_READ), 0U);
}

TEST_F(RdmaPush, LongerMessageIsNotPushedAndFailsBothEnds) {
  source->replace(2 * kSize);
  const auto receive = postReceive();
  const auto send = postSend(1);
  ASSERT_TRUE(ended(receive) && ended(send));
  EXPECT_EQ(receive->status().code(), ErrorCode::kTruncated);
  EXPECT_EQ(send->status().code(), ErrorCode::kTruncated);
  EXPECT_EQ(target->view().data[0], std::byte{0});
  EXPECT_EQ(counters().pushedMessages, 0U);
}

TEST_F(RdmaPush, ShorterMessageFillsTheFront) {
  target->replace(2 * kSize);
  const auto receive = postReceive();
  const auto send = postSend(3);
  ASSERT_TRUE(ended(receive) && ended(send));
  EXPECT_EQ(receive->bytes(), kSize);
  EXPECT_TRUE(holds(target, 3));
  EXPECT_EQ(target->view().data[kSize], std::byte{0});
  EXPECT_EQ(counters().pushedMessages, 1U);
}

TEST_F(RdmaPush, CancelledReceiveKeepsItsMemoryUntilTheSenderForgetsIt) {
  auto& node = (*world)[1];
  const auto cancelled = postReceive();
  node.engine->cancel(
      *node.group, cancelled, Status(ErrorCode::kTimeout, "taken back"));
  ASSERT_TRUE(cancelled->done());
  EXPECT_EQ(cancelled->status().code(), ErrorCode::kTimeout);
  EXPECT_TRUE(eventually([&] { return cancelled->released(); }));
  const auto receive = postReceive();
  const auto send = postSend(4);
  ASSERT_TRUE(ended(receive) && ended(send));
  EXPECT_TRUE(holds(target, 4));
}

TEST_F(RdmaPush, MessageOnItsWayToACancelledReceiveGoesToTheNextOne) {
  auto& node = (*world)[1];
  const auto cancelled = postReceive();
  fabric.hold("nic0", kSize);
  const auto send = postSend(5);
  node.engine->cancel(
      *node.group, cancelled, Status(ErrorCode::kTimeout, "taken back"));
  const auto other = std::make_shared<OwnedMemory>(kSize);
  const auto receive = post(Kind::kReceive, other);
  fabric.release("nic0");
  ASSERT_TRUE(ended(receive) && ended(send));
  EXPECT_TRUE(receive->status().ok()) << receive->status().message();
  EXPECT_TRUE(holds(other, 5));
  EXPECT_TRUE(eventually([&] { return cancelled->released(); }));
}

TEST_F(RdmaPush, CutCableFailsThePushWithTheNicsReason) {
  const auto receive = postReceive();
  fabric.cut("nic0");
  const auto send = postSend(6);
  ASSERT_TRUE(ended(send));
  EXPECT_EQ(send->status().code(), ErrorCode::kPeerFailed);
  EXPECT_NE(
      send->status().message().find("nic0:1: IBV_WC_RETRY_EXC_ERR"),
      std::string::npos)
      << send->status().message();
  EXPECT_TRUE(eventually([&] { return send->released(); }));
  ASSERT_TRUE(ended(receive));
  EXPECT_FALSE(receive->status().ok());
  EXPECT_TRUE(eventually([&] { return receive->released(); }));
}

class RdmaPushAgain : public RdmaPush {
 protected:
  RdmaPushAgain() {
    recovery = milliseconds(30000);
  }
};

TEST_F(RdmaPushAgain, CancelledPushIsNotMadeGoodByTheNextConnection) {
  auto& node = (*world)[0];
  const auto receive = postReceive();
  fabric.cut("nic0");
  const auto cancelled = postSend(6);
  EXPECT_EQ(counters().pushedMessages, 1U);
  node.engine->cancel(
      *node.group, cancelled, Status(ErrorCode::kCancelled, "taken back"));
  EXPECT_FALSE(cancelled->done());
  fabric.cut("nic0", false);
  ASSERT_TRUE(ended(cancelled));
  EXPECT_EQ(cancelled->status().code(), ErrorCode::kCancelled);
  EXPECT_FALSE(receive->done());
  const auto send = postSend(7);
  ASSERT_TRUE(ended(receive) && ended(send));
  EXPECT_TRUE(receive->status().ok()) << receive->status().message();
  EXPECT_TRUE(holds(target, 7));
}

TEST_F(RdmaPush, GroupThatEndsTakesItsOffersBack) {
  const auto receive = postReceive();
  auto& node = (*world)[1];
  node.engine->leave(*node.group);
  EXPECT_TRUE(receive->done());
  EXPECT_FALSE(receive->status().ok());
  EXPECT_TRUE(eventually([&] { return receive->released(); }));
}

} // namespace
} // namespace dlslime::testing
