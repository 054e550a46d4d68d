// One-sided transfers by NICs: the requests posted, and failures.
#include <gtest/gtest.h>

#include <climits>
#include <thread>

#include "fakes/peers/one_sided.h"
#include "fakes/verbs/rdma_pair.h"

namespace dlslime::testing {
namespace {

constexpr int64_t kPage = 16 << 10;
constexpr int64_t kPages = 300; // more than a queue pair takes at a time
constexpr size_t kSize = 2 * kPages * kPage;

class RdmaTransfer : public RdmaPair {
 protected:
  explicit RdmaTransfer(std::vector<FakeDevice> devices = {nicOf(0), nicOf(1)})
      : RdmaPair(std::move(devices)) {}
  void start(const Change& change = {}) {
    RdmaPair::start([&](Config& config, int rank) {
      config.recovery = milliseconds(30000);
      config.patience = milliseconds(500);
      if (change) {
        change(config, rank);
      }
    });
    for (int rank = 0; rank < 2; ++rank) {
      sides[rank] =
          std::make_unique<OneSided>((*world)[rank], kSize, unsigned(rank) + 1);
    }
  }
  // Returns every second page, so that no pieces can be merged.
  static TestTransfer::Pieces pages() {
    TestTransfer::Pieces pieces;
    for (int64_t i = 0; i < kPages; ++i) {
      pieces.push_back({2 * i * kPage, 2 * i * kPage, kPage});
    }
    return pieces;
  }
  void expectPages() {
    for (const auto& [here, there, length] : pages()) {
      ASSERT_TRUE(sides[0]->same(
          *sides[1], size_t(here), size_t(there), size_t(length)));
    }
  }
  std::unique_ptr<OneSided> sides[2];
};

TEST_F(RdmaTransfer, EachPageIsOneRequestAndManyGoByOneDoorbell) {
  start();
  ASSERT_TRUE(sides[0]->done(sides[0]->read(1, *sides[1], {{0, 0, 1}})));
  const auto reads = fabric.requests("nic0", IBV_WR_RDMA_READ);
  const auto immediates = fabric.requests(IBV_WR_RDMA_WRITE_WITH_IMM);
  const auto doorbells = fabric.doorbells();
  ASSERT_TRUE(sides[0]->done(sides[0]->read(1, *sides[1], pages())));
  expectPages();
  EXPECT_EQ(fabric.requests("nic0", IBV_WR_RDMA_READ) - reads, kPages);
  EXPECT_LE(fabric.requests(IBV_WR_RDMA_WRITE_WITH_IMM) - immediates, 2U);
  EXPECT_LE(fabric.doorbells() - doorbells, kPages / 3);
}

TEST_F(RdmaTransfer, WritesAreWrites) {
  start();
  ASSERT_TRUE(sides[0]->done(sides[0]->write(1, *sides[1], pages())));
  expectPages();
  EXPECT_EQ(fabric.requests("nic0", IBV_WR_RDMA_WRITE), kPages);
}

TEST_F(RdmaTransfer, RegionsAreRegisteredOnceAndUntilTheirEnd) {
  start();
  const auto before = fabric.live()["mr"];
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(sides[0]->done(sides[0]->read(1, *sides[1], pages())));
  }
  EXPECT_EQ(fabric.live()["mr"], before + 2); // one at each end
  sides[0]->deregister();
  sides[1]->deregister();
  EXPECT_EQ(fabric.live()["mr"], before);
}

// The initiator registers on the caller's thread, the owner on a thread of the
// engine.
class RdmaDeregister : public RdmaTransfer,
                       public ::testing::WithParamInterface<int> {
 protected:
  static constexpr size_t kOwn = 3 << 20; // a size of no other region
};

TEST_P(RdmaDeregister, WaitsForAThreadThatHasItRegisteredWithTheNic) {
  start();
  OneSided mine((*world)[GetParam()], kOwn, 9);
  std::atomic<int> registered{0};
  std::thread closer;
  fabric.onRegistration([&](size_t bytes) {
    if (bytes == kOwn && registered++ == 0) {
      closer = std::thread([&] {
        try {
          mine.deregister();
        } catch (const Error&) { // called after the transfer was posted
          return;
        }
        EXPECT_EQ(registered, 0);
      });
      std::this_thread::sleep_for(milliseconds(20)); // waiting by then
    }
  });
  fabric.onDeregistration([&](size_t bytes) {
    if (bytes == kOwn) {
      std::this_thread::sleep_for(milliseconds(50));
      --registered;
    }
  });
  const auto read = GetParam() == 0 ? mine.read(1, *sides[1], {{0, 0, kPage}})
                                    : sides[0]->read(1, mine, {{0, 0, kPage}});
  EXPECT_TRUE(sides[0]->wait(*read));
  ASSERT_TRUE(closer.joinable());
  closer.join();
  world.reset(); // ends the threads that call the functions above
}
INSTANTIATE_TEST_SUITE_P(
    Ends,
    RdmaDeregister,
    ::testing::Values(0, 1),
    [](const auto& instance) {
      return std::string(instance.param == 0 ? "Initiator" : "Owner");
    });

TEST_F(RdmaTransfer, MemoryThatCantBeRegisteredGoesInMessages) {
  start();
  fabric.failRegistrations(ENOMEM);
  ASSERT_TRUE(sides[0]->done(sides[0]->read(1, *sides[1], pages())));
  expectPages();
  EXPECT_EQ(route(0), "rdma");
  EXPECT_GE(log.count("can't be registered"), 1U) << log.all();
}

TEST_F(RdmaTransfer, CablesThatComeAndGoCostNothing) {
  start();
  std::atomic<bool> over{false};
  std::thread cutter([&] {
    cutOften(); // bounded, since a cut transfer begins anew
    over = true;
  });
  for (int i = 0; (i < 10 || !over) && !HasFatalFailure(); ++i) {
    const auto fresh = pattern(kSize, unsigned(i));
    std::copy(fresh.begin(), fresh.end(), sides[1]->memory.begin());
    const bool write = i % 2 == 0;
    ASSERT_TRUE(sides[0]->done(
        write ? sides[0]->write(1, *sides[1], pages())
              : sides[0]->read(1, *sides[1], pages())));
    expectPages();
  }
  cutter.join();
}

TEST_F(RdmaTransfer, LastNicIsFollowedByTcp) {
  start();
  const auto read = sides[0]->read(1, *sides[1], pages());
  fabric.cut("nic1");
  ASSERT_TRUE(sides[0]->done(read));
  ASSERT_TRUE(sides[0]->done(sides[0]->write(1, *sides[1], pages())));
  ASSERT_TRUE(sides[0]->done(sides[0]->read(1, *sides[1], pages())));
  expectPages();
  EXPECT_EQ(route(0), "tcp");
  sides[1]->deregister();
}

// The parts end one by one when the connection has gone.
TEST_F(RdmaTransfer, EngineMayEndAmongReadsOfSeveralParts) {
  start([](Config& config, int) { config.linger = milliseconds(0); });
  Transfer::Parts parts;
  for (const int64_t at : {int64_t{0}, kPage}) {
    const auto one = TestTransfer::readFrom(
        1, sides[0]->region, sides[1]->region->handle(), {{at, at, kPage}});
    parts.push_back(one->parts().at(0));
  }
  const auto both = [&] {
    return sides[0]->post(
        std::make_shared<TestTransfer>(Operation::Kind::kRead, 1, parts));
  };
  ASSERT_TRUE(sides[0]->done(both()));
  fabric.delay(INT_MAX); // as if the peer never answered
  const auto read = both();
  world->stop(0);
  EXPECT_TRUE(read->done());
  EXPECT_FALSE(read->status().ok());
}

class RdmaTransferByTwo : public RdmaTransfer {
 protected:
  RdmaTransferByTwo() : RdmaTransfer(twoNetworks()) {}
  void start() {
    RdmaTransfer::start([](Config& config, int rank) {
      config.rdma.nics = rank == 0 ? "=nic0a,nic0b" : "=nic1a,nic1b";
    });
  }
};

TEST_F(RdmaTransferByTwo, PagesGoByBothNics) {
  start();
  ASSERT_TRUE(sides[0]->done(sides[0]->read(1, *sides[1], pages())));
  expectPages();
  EXPECT_GE(fabric.requests("nic0a", IBV_WR_RDMA_READ), 50U);
  EXPECT_GE(fabric.requests("nic0b", IBV_WR_RDMA_READ), 50U);
  // A write goes on after the loss of a NIC.
  const auto write = sides[0]->write(1, *sides[1], pages());
  fabric.cut("nic0a");
  ASSERT_TRUE(sides[0]->done(write));
  expectPages();
}

// NICs have buffers of their own: bytes acknowledged by a NIC may land after a
// later message by a second NIC.
TEST_F(RdmaTransferByTwo, WhatIsWrittenIsThereBeforeTheNextMessage) {
  fabric.landLate("nic0a");
  fabric.landLate("nic0b");
  start();
  const auto before = fabric.requests(IBV_WR_RDMA_READ);
  for (unsigned round = 0; round < 5; ++round) {
    const auto fresh = pattern(kSize, round + 10);
    std::copy(fresh.begin(), fresh.end(), sides[0]->memory.begin());
    ASSERT_TRUE(sides[0]->done(sides[0]->write(1, *sides[1], pages())));
    ASSERT_TRUE(world->passes(0, 1, 8));
    expectPages();
  }
  EXPECT_GE(fabric.requests("nic0a", IBV_WR_RDMA_WRITE), 100U);
  EXPECT_GE(fabric.requests("nic0b", IBV_WR_RDMA_WRITE), 100U);
  // A flushing READ per write, over the second NIC alone.
  EXPECT_EQ(fabric.requests(IBV_WR_RDMA_READ) - before, 5U);
}

} // namespace
} // namespace dlslime::testing
