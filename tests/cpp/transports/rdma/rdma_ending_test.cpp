// Ends of RDMA connections: the operations under way, and waits for the peer.
#include <gtest/gtest.h>

#include <cerrno>
#include <climits>

#include "fakes/owned_memory.h"
#include "fakes/verbs/rdma_ends.h"

namespace dlslime::testing {
namespace {

// Records the ends of pushes.
struct PushEvents final : ConnectionEvents {
  void onMessage(const MessageHeader& /*header*/, ByteSpan /*payload*/)
      override {}
  void onPulled(uint64_t /*pullId*/, const Status& /*status*/) override {}
  void onPushed(uint64_t pushId, const Status& status) override {
    EXPECT_FALSE(status.ok());
    ended.push_back(pushId);
  }
  std::vector<uint64_t> ended;
};

// Pushes refused at the end of a batch end through poll() alone.
TEST_F(RdmaTest, PushesOfAChainThatWasRefusedEndWithTheConnection) {
  connect();
  settle();
  const auto connection = channel(0).takeConnection();
  OwnedMemory memory(1 << 20); // large enough to be registered
  connection->pulling()->expose(1, memory.view());
  const RemoteBuffer target{1, {2}, 0};
  connection->batching()->beginBatch();
  for (const uint64_t id : {7, 8}) {
    EXPECT_EQ(
        connection->pushing()->push(id, target, memory.view(), id),
        PushAbility::Result::kPosted);
  }
  fabric.failPosts(1, EIO);
  connection->batching()->endBatch();
  PushEvents events;
  Status broken;
  connection->poll(events, broken, 100);
  EXPECT_FALSE(broken.ok());
  connection->replacing()->sever();
  for (int i = 0; i < 100 && !connection->drained(); ++i) {
    connection->poll(events, broken, 100);
  }
  EXPECT_TRUE(connection->drained());
  EXPECT_EQ(events.ended, (std::vector<uint64_t>{7, 8}));
}

TEST_F(RdmaTest, CloseLetsWhatWasSentArrive) {
  connect();
  settle();
  for (int i = 0; i < 100; ++i) {
    send(0, 5000);
  }
  fabric.delay(3);
  const auto last = send(0, 5000);
  EXPECT_TRUE(last->done());
  channel(0).fail(Status(ErrorCode::kCancelled, "this end stops"));
  const auto connection = channel(0).takeConnection();
  EXPECT_TRUE(eventually([&] { return connection->close(false); }));
  for (int i = 0; i < 101; ++i) {
    const auto got = receive(1, 5000);
    ends_[1]->poll();
    ASSERT_TRUE(got->done() && got->status().ok()) << i;
  }
}

TEST_F(RdmaTest, CloseDoesNotWaitForAPeerThatHasGone) {
  connect();
  settle();
  fabric.delay(INT_MAX); // as if the peer never answered
  send(0, 5000);
  ends_[0]->poll();
  channel(0).fail(Status(ErrorCode::kCancelled, "this end stops"));
  const auto connection = channel(0).takeConnection();
  EXPECT_FALSE(connection->close(false));
  EXPECT_FALSE(connection->close(false));
  EXPECT_TRUE(connection->close(true));
}

} // namespace
} // namespace dlslime::testing
