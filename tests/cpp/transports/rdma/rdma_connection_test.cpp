// The protocol between two processes over RDMA, on a FakeFabric.
#include "transports/rdma/rdma_connection.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <cerrno>
#include <random>

#include "fakes/verbs/rdma_ends.h"

namespace dlslime::testing {
namespace {

TEST_F(RdmaTest, MessagesOfEverySizeArriveBothWays) {
  connect();
  EXPECT_EQ(channel(0).connection().route(), "rdma");
  for (const size_t size :
       {0, 1, 200, 1000, 16384, 16385, 65536, 131072, 131073, 5 << 20}) {
    for (const int from : {0, 1}) {
      const auto got = receive(1 - from, size);
      const auto sent = send(from, size);
      settle();
      ASSERT_TRUE(sent->done() && sent->status().ok()) << size;
      ASSERT_TRUE(got->done() && got->status().ok()) << size;
      ASSERT_EQ(got->bytes(), size);
      ASSERT_EQ(got->result(), sent->result()) << size;
    }
  }
  EXPECT_GT(fabric.requests(IBV_WR_RDMA_READ), 0U);
}

// The peer must not reach the mirror: after a replacement, records are sent
// again from the mirror.
TEST_F(RdmaTest, PeerCanWriteIntoTheRingAlone) {
  connect();
  settle();
  EXPECT_EQ(fabric.writable(), std::set<size_t>{rdma::kRingBytes});
}

TEST_F(RdmaTest, FloodInBothDirectionsNeedsNoMoreReceivesThanArePosted) {
  connect();
  settle();
  std::vector<std::pair<GuardedPtr, GuardedPtr>> all;
  for (int i = 0; i < 5000; ++i) {
    for (const int from : {0, 1}) {
      auto sent = send(from, static_cast<size_t>(i % 3 == 0 ? 9000 : 8));
      all.emplace_back(std::move(sent), receive(1 - from, 9000));
    }
  }
  settle();
  for (const auto& [sent, got] : all) {
    ASSERT_TRUE(sent->done() && sent->status().ok());
    ASSERT_TRUE(got->done() && got->status().ok());
  }
}

TEST_F(RdmaTest, RandomTrafficArrivesInOrder) {
  for (const int delay : {0, 1, 5}) {
    fabric.delay(delay);
    for (uint64_t seed = 1; seed <= 2; ++seed) {
      SCOPED_TRACE(
          ::testing::Message() << "seed " << seed << " delay " << delay);
      std::mt19937_64 random(seed);
      if (ends_[0]->channels.empty()) {
        connect();
      }
      std::vector<GuardedPtr> sends[2][3], receives[2][3];
      for (int i = 0; i < 120; ++i) {
        const int from = static_cast<int>(random() % 2);
        const auto tag = static_cast<uint32_t>(random() % 3);
        const size_t size =
            random() % 8 == 0 ? random() % 400000 : random() % 20000;
        sends[from][tag].push_back(send(from, size, tag));
        const auto other = static_cast<uint32_t>(random() % 3);
        receives[from][other].push_back(receive(1 - from, 400000, other));
        ends_[static_cast<int>(random() % 2)]->poll();
      }
      for (const int from : {0, 1}) {
        for (uint32_t tag = 0; tag < 3; ++tag) {
          while (receives[from][tag].size() < sends[from][tag].size()) {
            receives[from][tag].push_back(receive(1 - from, 400000, tag));
          }
          while (sends[from][tag].size() < receives[from][tag].size()) {
            sends[from][tag].push_back(send(from, 100, tag));
          }
        }
      }
      settle();
      for (const int from : {0, 1}) {
        for (uint32_t tag = 0; tag < 3; ++tag) {
          for (size_t i = 0; i < sends[from][tag].size(); ++i) {
            const auto& got = receives[from][tag][i];
            ASSERT_TRUE(got->done() && got->status().ok());
            const auto& sent = sends[from][tag][i]->result();
            ASSERT_EQ(got->bytes(), sent.size());
            ASSERT_TRUE(
                std::equal(sent.begin(), sent.end(), got->result().begin()));
          }
        }
      }
    }
  }
}

// The test has no engine to make a new connection.
TEST_F(RdmaTest, CutCableHoldsEverythingUntilThePeerIsGone) {
  connect();
  settle();
  const auto pulled = receive(1, 3 << 20);
  const auto sent = send(0, 3 << 20);
  fabric.cut("left");
  const auto small = send(0, 8);
  settle();
  EXPECT_TRUE(channel(0).awaitsConnection());
  EXPECT_FALSE(pulled->done() || sent->done());
  EXPECT_NE(
      channel(0).failure().message().find("left:1: IBV_WC_RETRY_EXC_ERR"),
      std::string::npos)
      << channel(0).failure().message();
  end();
  for (const auto& operation : {pulled, sent}) {
    ASSERT_TRUE(operation->done()) << operation->describe();
    EXPECT_FALSE(operation->status().ok());
    EXPECT_EQ(operation->releases(), 1) << operation->describe();
  }
  EXPECT_TRUE(channel(0).idle());
  EXPECT_TRUE(channel(1).idle());
}

TEST_F(RdmaTest, PostThatTheDeviceRefusesBreaksTheConnectionOnly) {
  connect();
  settle();
  fabric.failPosts(1, ENOMEM);
  const auto sent = send(0, 3 << 20); // announced by a message
  settle();
  EXPECT_TRUE(channel(0).awaitsConnection());
  EXPECT_NE(channel(0).failure().message().find("errno 12"), std::string::npos)
      << channel(0).failure().message();
  end();
  EXPECT_TRUE(sent->done());
}

// Messages that waited for room in the ring go out together when credit comes.
TEST_F(RdmaTest, MessagesThatWaitedShareADoorbell) {
  const auto sends = flood(2000);
  const auto posted = fabric.requests(IBV_WR_RDMA_WRITE_WITH_IMM);
  const auto before = fabric.doorbells();
  settle();
  const auto more = fabric.requests(IBV_WR_RDMA_WRITE_WITH_IMM) - posted;
  EXPECT_GT(more, 900U);
  EXPECT_LT(fabric.doorbells() - before, more / 10);
  for (uint32_t i = 0; i < 2000; ++i) {
    const auto got = receive(1, 8);
    ASSERT_TRUE(got->done() && got->status().ok());
    ASSERT_EQ(got->result(), sends[i]->result());
  }
}

TEST_F(RdmaTest, ChainOfWhichTheDeviceTakesAPartBreaksTheConnectionOnly) {
  const auto sends = flood(2000);
  fabric.failPosts(1, ENOMEM, 3);
  settle();
  EXPECT_TRUE(channel(0).awaitsConnection());
  end();
  EXPECT_EQ(channel(0).state(), PeerChannel::State::kFailed);
  for (const auto& sent : sends) {
    ASSERT_EQ(sent->ends(), 1);
    ASSERT_EQ(sent->releases(), 1);
  }
  EXPECT_TRUE(channel(0).idle());
  EXPECT_TRUE(channel(1).idle());
}

TEST_F(RdmaTest, MemoryThatCantBeRegisteredIsStreamed) {
  connect();
  settle();
  const auto before = fabric.requests(IBV_WR_RDMA_READ);
  fabric.failRegistrations(ENOMEM);
  const auto got = receive(1, 1 << 20);
  const auto sent = send(0, 1 << 20);
  settle();
  ASSERT_TRUE(got->done() && got->status().ok()) << got->status().message();
  EXPECT_EQ(got->result(), sent->result());
  EXPECT_EQ(fabric.requests(IBV_WR_RDMA_READ), before);
  EXPECT_EQ(log.count("cannot register 1048576 bytes with left"), 1U);
}

TEST_F(RdmaTest, ReceiverThatCantRegisterIsStreamedTo) {
  connect();
  settle();
  const auto before = fabric.requests(IBV_WR_RDMA_READ);
  for (int round = 0; round < 3; ++round) {
    const auto sent = send(0, 1 << 20);
    fabric.failRegistrations(ENOMEM);
    const auto got = receive(1, 1 << 20);
    settle();
    ASSERT_TRUE(got->done() && sent->done());
    EXPECT_TRUE(got->status().ok() && sent->status().ok());
    EXPECT_EQ(got->result(), sent->result());
    fabric.failRegistrations(0);
  }
  EXPECT_EQ(fabric.requests(IBV_WR_RDMA_READ), before);
  EXPECT_EQ(log.count("cannot register 1048576 bytes with right"), 1U)
      << "it is said once: " << log.all();
  const auto next = receive(1, 1 << 20);
  send(0, 1 << 20);
  settle();
  EXPECT_TRUE(next->done() && next->status().ok());
  EXPECT_GT(fabric.requests(IBV_WR_RDMA_READ), 0U);
}

TEST_F(RdmaTest, CancelledReceiveEndsWhenTheNicIsDone) {
  connect();
  settle();
  fabric.delay(10);
  const auto got = receive(1, 8 << 20);
  const auto sent = send(0, 8 << 20);
  while (got->stage != Operation::Stage::kPulling) {
    ends_[0]->poll();
    ends_[1]->poll();
  }
  ends_[1]->cancel(*groups_[1], got, Status(ErrorCode::kTimeout, "taken back"));
  EXPECT_EQ(got->releases(), 0) << "the NIC still writes into it";
  fabric.delay(0);
  settle();
  ASSERT_TRUE(got->done());
  EXPECT_EQ(got->status().code(), ErrorCode::kTimeout);
  EXPECT_EQ(got->releases(), 1);
  ASSERT_TRUE(sent->done());
  const auto next = receive(1, 100);
  send(0, 100);
  settle();
  EXPECT_TRUE(next->done() && next->status().ok());
}

TEST_F(RdmaTest, MalformedAddressesAreRefused) {
  connect();
  Transport::Context context;
  context.nonce = "m";
  const auto good = transports_[0]->offer(context).blob;
  std::mt19937_64 random(3);
  Offer answer;
  for (size_t size = 0; size < good.size(); ++size) {
    const Bytes cut(good.begin(), good.begin() + static_cast<ptrdiff_t>(size));
    EXPECT_THROW(transports_[1]->accept(context, {cut, {}}, answer), Error);
  }
  for (int i = 0; i < 500; ++i) {
    Bytes bad = good;
    bad[random() % bad.size()] = static_cast<std::byte>(random());
    try {
      transports_[1]->accept(context, {bad, {}}, answer);
    } catch (const Error&) {
    }
  }
  EXPECT_THROW(
      transports_[0]->finish({nullptr, "unknown", true, {}}, {good, {}}),
      Error);
  transports_[0]->withdraw(context);
}

TEST_F(RdmaTest, SleepingEndIsWokenByACompletion) {
  connect();
  settle();
  transports_[1]->beginSleep();
  settle();
  transports_[1]->drainWakeFds();
  transports_[1]->beginSleep();
  send(0, 8);
  ends_[0]->poll();
  pollfd ready{transports_[1]->wakeFds().at(0), POLLIN, 0};
  EXPECT_EQ(::poll(&ready, 1, 0), 1);
  transports_[1]->drainWakeFds();
  EXPECT_EQ(::poll(&ready, 1, 0), 0);
}

} // namespace
} // namespace dlslime::testing
