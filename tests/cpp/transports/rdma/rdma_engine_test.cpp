// Whole engines, with their threads, over RDMA on a FakeFabric.
#include <gtest/gtest.h>

#include <ctime>
#include <filesystem>
#include <thread>

#include "engine/bootstrap/address_directory.h"
#include "engine/bootstrap/wire_records.h"

#include "fakes/cluster.h"
#include "fakes/log_capture.h"
#include "fakes/verbs/fake_verbs.h"
#include "fakes/verbs/rdma_hosts.h"

namespace dlslime::testing {
namespace {

size_t entries(const char* folder) {
  const std::filesystem::directory_iterator all(folder);
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

class RdmaEngine : public ::testing::Test {
 protected:
  AuditedFabric fabric{{nicOf(0), nicOf(1), nicOf(2)}};
  LogCapture log;
};

TEST_F(RdmaEngine, MessagesOfAllSizesArriveInBothDirections) {
  Cluster world(3, rdmaHost, byRdmaAlone);
  for (const size_t size :
       {0, 1, 8000, 70000, 200000, 1 << 20, (9 << 20) + 13}) {
    ASSERT_TRUE(world.passes(0, 1, size)) << size;
    ASSERT_TRUE(world.passes(1, 0, size)) << size;
    ASSERT_TRUE(world.passes(2, 0, size)) << size;
  }
  const auto report = world[0].engine->report(*world[0].group);
  EXPECT_EQ(report.at(0).route, "rdma");
  EXPECT_EQ(report.at(0).copy, "read");
}

TEST_F(RdmaEngine, WaitersSleepAndAreWoken) {
  Cluster world(2, rdmaHost, byRdmaAlone);
  ASSERT_TRUE(world.passes(0, 1));
  for (const size_t size : {8, 1 << 20}) {
    const auto receive = world[1].receive(0, 1, size);
    std::thread waiter([&] { EXPECT_TRUE(world[1].wait(receive)); });
    std::this_thread::sleep_for(milliseconds(20)); // asleep by then
    const auto send = world[0].send(1, 1, pattern(size));
    waiter.join();
    EXPECT_EQ(receive->buffer(), send->buffer());
    EXPECT_TRUE(world[0].wait(send));
  }
}

TEST_F(RdmaEngine, OperationsCompleteWithoutAWaitingThread) {
  Cluster world(2, rdmaHost, byRdmaAlone);
  const auto receive = world[1].receive(0, 1, 1 << 22);
  const auto send = world[0].send(1, 1, pattern(1 << 22));
  EXPECT_TRUE(eventually([&] { return receive->done() && send->done(); }));
  EXPECT_EQ(receive->buffer(), send->buffer());
}

TEST_F(RdmaEngine, ThreadsOfBothEndsPostAtOnce) {
  Cluster world(2, rdmaHost, byRdmaAlone);
  std::vector<std::thread> threads;
  for (uint32_t tag = 0; tag < 4; ++tag) {
    threads.emplace_back([&, tag] {
      const int rank = static_cast<int>(tag) % 2;
      for (int i = 0; i < 50; ++i) {
        const size_t size = i % 10 == 0 ? 300000 : 3000;
        const auto receive = world[1 - rank].receive(rank, tag, size);
        const auto send = world[rank].send(1 - rank, tag, pattern(size, tag));
        ASSERT_TRUE(world[1 - rank].wait(receive));
        ASSERT_TRUE(world[rank].wait(send));
        ASSERT_EQ(receive->buffer(), send->buffer());
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
}

TEST_F(RdmaEngine, HostWithoutANicIsReachedByTcpAndBothSayWhy) {
  Cluster world(2, [](int rank) {
    auto config = rdmaHost(rank);
    config.rdma.enabled = rank == 0;
    return config;
  });
  ASSERT_TRUE(world.passes(0, 1, 100000));
  EXPECT_EQ(world[0].engine->report(*world[0].group).at(0).route, "tcp");
  EXPECT_GE(log.count("go over TCP"), 1U);
  EXPECT_EQ(log.count("rdma: "), log.count("go over TCP")) << log.all();
}

TEST_F(RdmaEngine, PeerOfAnotherVersionFailsOperationsNamingBoth) {
  Cluster world(2, rdmaHost, byRdmaAlone);
  const auto store = world.rendezvous("first");
  auto record = *store->tryGet(addressKey(1));
  record[8] = std::byte{kProtocolVersion + 1};
  store->set(addressKey(1), record);
  for (const auto& operation :
       {world[0].send(1, 1, pattern(100)), world[0].receive(1, 1, 100)}) {
    ASSERT_TRUE(world[0].wait(operation));
    const auto text = operation->status().message();
    for (const int version : {kProtocolVersion + 0, kProtocolVersion + 1}) {
      EXPECT_NE(text.find(std::to_string(version)), std::string::npos) << text;
    }
  }
}

TEST_F(RdmaEngine, PeerThatLeavesFailsTheReceivesAndKeepsWhatItSent) {
  Cluster world(2, rdmaHost, byRdmaAlone);
  ASSERT_TRUE(world.passes(0, 1));
  const auto last = world[1].send(0, 1, pattern(500));
  ASSERT_TRUE(world[1].wait(last));
  world.stop(1);
  const auto arrived = world[0].receive(1, 1, 500);
  const auto never = world[0].receive(1, 5, 8);
  ASSERT_TRUE(world[0].wait(arrived));
  EXPECT_TRUE(arrived->status().ok()) << arrived->status().message();
  ASSERT_TRUE(world[0].wait(never));
  EXPECT_EQ(never->status().code(), ErrorCode::kPeerFailed);
}

TEST_F(RdmaEngine, TwoHundredLivesLeaveNothing) {
  size_t descriptors = 0, threads = 0;
  for (int life = 0; life < 200; ++life) {
    if (life == 6) { // everything made once is there
      descriptors = entries("/proc/self/fd");
      threads = entries("/proc/self/task");
    }
    Cluster world(2, rdmaHost, byRdmaAlone);
    ASSERT_TRUE(world.passes(0, 1, life % 2 == 0 ? 100 : 300000)) << life;
    if (life % 3 == 0) {
      world.stop(1); // stops one end first, else both at once
    }
  }
  EXPECT_TRUE(fabric.live().empty());
  EXPECT_EQ(entries("/proc/self/fd"), descriptors);
  // A joined thread may be listed for another moment.
  EXPECT_TRUE(eventually([&] { return entries("/proc/self/task") <= threads; }))
      << entries("/proc/self/task") << " threads, and " << threads << " before";
}

TEST_F(RdmaEngine, IdleEnginesUseNoProcessorTime) {
  Cluster world(2, rdmaHost, byRdmaAlone);
  ASSERT_TRUE(world.passes(0, 1, 2 << 20));
  const auto pending = world[0].receive(1, 5, 8);
  std::this_thread::sleep_for(milliseconds(100));
  const auto before = std::clock();
  std::this_thread::sleep_for(milliseconds(300));
  EXPECT_LT(double(std::clock() - before) / CLOCKS_PER_SEC, 0.06) << "of 0.3 s";
}

} // namespace
} // namespace dlslime::testing
