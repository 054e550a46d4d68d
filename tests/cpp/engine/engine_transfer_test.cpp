// One-sided transfers between engines, over every route of the machine.
#include <gtest/gtest.h>

#include <thread>

#include "fakes/cluster.h"
#include "fakes/log_capture.h"
#include "fakes/memory_carriers.h"
#include "fakes/peers/one_sided.h"
#include "fakes/status_of.h"
#include "fakes/verbs/rdma_hosts.h"

namespace dlslime::testing {
namespace {

constexpr size_t kSize = 8 << 20;
constexpr int64_t kPage = 16 << 10;

// How two ranks connect.
struct Way {
  const char* name;
  const char* route;
  RoutePolicy policy = RoutePolicy::kAuto;
  bool apart = false; // on two hosts
};
void PrintTo(const Way& way, std::ostream* out) {
  *out << way.name;
}

class EngineTransfer : public ::testing::TestWithParam<Way> {
 protected:
  EngineTransfer() {
    const auto& way = GetParam();
    world.emplace(
        2,
        [&](int rank) {
          auto config = way.apart ? rdmaHost(rank) : Config{};
          config.recovery = milliseconds(30000);
          config.patience = milliseconds(200);
          return config;
        },
        [&](GroupOptions& options) {
          options.route = way.policy;
          options.carrierSource = carriers;
          options.fallback = FallbackPolicy::kAllow;
        });
    for (int rank = 0; rank < 2; ++rank) {
      sides[rank] =
          std::make_unique<OneSided>((*world)[rank], kSize, unsigned(rank) + 1);
    }
  }
  OneSided& side(int rank) {
    return *sides[rank];
  }
  std::string route() {
    auto& node = (*world)[0];
    return node.engine->report(*node.group).at(0).route;
  }

  LogCapture log;
  AuditedFabric fabric{std::vector<FakeDevice>{nicOf(0), nicOf(1)}};
  std::shared_ptr<MemoryCarriers> carriers = std::make_shared<MemoryCarriers>();
  std::optional<Cluster> world;
  std::unique_ptr<OneSided> sides[2];
};

TEST_P(EngineTransfer, ReadsAndWritesGoWhereTheyBelong) {
  const auto read = side(0).read(1, side(1), {{100, 7000, 50000}});
  ASSERT_TRUE(side(0).done(read));
  EXPECT_EQ(route(), GetParam().route);
  EXPECT_TRUE(side(0).same(side(1), 100, 7000, 50000));
  EXPECT_EQ(read->bytes(), 50000U);
  const auto write = side(0).write(1, side(1), {{0, 1 << 20, 1 << 20}});
  ASSERT_TRUE(side(0).done(write));
  EXPECT_TRUE(side(0).same(side(1), 0, 1 << 20, 1 << 20));
  // Rank 1 has posted nothing.
  EXPECT_TRUE(eventually([&] { return read->ends() == 1; }));
  EXPECT_TRUE(eventually([&] { return read->releases() == 1; }));
}

TEST_P(EngineTransfer, ThousandsOfPagesInAnyOrder) {
  TestTransfer::Pieces pieces;
  const auto pages = static_cast<int64_t>(kSize) / kPage / 4;
  for (int64_t i = 0; i < pages; ++i) {
    // Every second page, backwards, so that no pieces can be merged.
    pieces.push_back({i * 2 * kPage, (pages - 1 - i) * 2 * kPage, kPage});
  }
  const auto before = side(0).memory;
  const auto read = side(0).read(1, side(1), pieces);
  ASSERT_TRUE(side(0).done(read));
  for (const auto& [here, there, length] : pieces) {
    ASSERT_TRUE(
        side(0).same(side(1), size_t(here), size_t(there), size_t(length)));
    // The page behind is unchanged.
    ASSERT_EQ(
        std::memcmp(
            side(0).memory.data() + here + kPage,
            before.data() + here + kPage,
            size_t(kPage)),
        0);
  }
}

TEST_P(EngineTransfer, ManyAtATimeFromSeveralThreads) {
  constexpr int kThreads = 4;
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      const auto base = int64_t(kSize) / kThreads * thread;
      for (int i = 0; i < 50; ++i) {
        const auto at = base + i * 40000;
        const auto length = 1 + 997 * i % 40000;
        const auto read =
            side(thread % 2)
                .read(1 - thread % 2, side(1 - thread % 2), {{at, at, length}});
        wrong += !side(thread % 2).done(read);
        wrong += !side(thread % 2)
                      .same(
                          side(1 - thread % 2),
                          size_t(at),
                          size_t(at),
                          size_t(length));
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(wrong, 0);
}

// Copies of all kinds share threads and jobs.
TEST_P(EngineTransfer, TransfersAndLargeMessagesAtOnce) {
  constexpr size_t kMessage = 3 << 20;
  std::atomic<bool> over{false};
  std::atomic<int> wrong{0};
  std::thread reader([&] {
    for (int i = 0; !over || i < 50; ++i) {
      const auto at = int64_t{i % 100} * 40000;
      const auto read = side(0).read(
          1, side(1), {{at, at, 20000}, {at + 20001, at + 20001, 9000}});
      wrong += !side(0).done(read);
      wrong += !side(0).same(side(1), size_t(at), size_t(at), 20000);
    }
  });
  for (int i = 0; i < 30; ++i) {
    const auto bytes = pattern(kMessage, unsigned(i));
    const auto receive = (*world)[i % 2].receive(1 - i % 2, 5, kMessage);
    const auto send = (*world)[1 - i % 2].send(i % 2, 5, bytes);
    ASSERT_TRUE(side(i % 2).wait(*receive));
    ASSERT_TRUE(side(1 - i % 2).wait(*send));
    ASSERT_EQ(receive->buffer(), bytes) << i;
  }
  over = true;
  reader.join();
  EXPECT_EQ(wrong, 0);
}

TEST_P(EngineTransfer, NoteIsReceivedAfterTheBytes) {
  for (int i = 0; i < 20; ++i) {
    const auto at = int64_t{i} * 300000;
    const auto note = makeSend(1, 77, pattern(8, unsigned(i)));
    const auto noted = (*world)[1].receive(0, 77, 8);
    const auto write = TestTransfer::writeTo(
        1, side(0).region, side(1).region->handle(), {{at, at, 300000}});
    write->note = note;
    side(0).post(write);
    ASSERT_TRUE(side(1).wait(*noted));
    EXPECT_TRUE(side(1).same(side(0), size_t(at), size_t(at), 300000));
    EXPECT_EQ(noted->buffer(), note->buffer());
    ASSERT_TRUE(side(0).done(write));
  }
}

TEST_P(EngineTransfer, ThousandsUnderWayAtATime) {
  std::vector<TestTransferPtr> reads;
  for (int64_t i = 0; i < 3000; ++i) {
    reads.push_back(side(0).read(1, side(1), {{i * 2000, i * 2000, 1500}}));
  }
  for (const auto& read : reads) {
    ASSERT_TRUE(side(0).done(read));
  }
  EXPECT_TRUE(side(0).same(side(1), 2999 * 2000, 2999 * 2000, 1500));
}

TEST_P(EngineTransfer, TransferOfNothingEndsWell) {
  ASSERT_TRUE(side(0).done(side(0).read(1, side(1), {})));
  ASSERT_TRUE(side(0).done(side(0).read(1, side(1), {{5, 6, 0}, {7, 8, 0}})));
}

TEST_P(EngineTransfer, RegionIsGivenBackAndThenUnknown) {
  ASSERT_TRUE(side(0).done(side(0).read(1, side(1), {{0, 0, 100}})));
  side(1).deregister();
  const auto late = side(0).read(1, side(1), {{0, 0, 100}});
  ASSERT_TRUE(side(0).wait(*late));
  EXPECT_EQ(late->status().code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(
      late->status().message().find("region \"memory 2\" of pid"),
      std::string::npos)
      << late->status().message();
  EXPECT_NE(late->status().message().find("deregistered"), std::string::npos);
  // The pair still works.
  EXPECT_TRUE(world->passes(0, 1));
}

TEST_P(EngineTransfer, RegionInUseIsNotDeregistered) {
  const auto read = side(0).read(1, side(1), {{0, 0, int64_t(kSize)}});
  try {
    side(0).deregister();
    EXPECT_TRUE(read->done());
  } catch (const Error& error) {
    EXPECT_EQ(error.status().code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(
        std::string(error.what()).find("transfers of this process use it"),
        std::string::npos);
  }
  ASSERT_TRUE(side(0).done(read));
  side(0).deregister();
}

TEST_P(EngineTransfer, HandleWithAWrongSecretIsRefused) {
  auto forged = side(1).region->handle();
  forged.secret ^= 1;
  const auto read = side(0).post(
      TestTransfer::readFrom(1, side(0).region, forged, {{0, 0, 100}}));
  ASSERT_TRUE(side(0).wait(*read));
  EXPECT_EQ(read->status().code(), ErrorCode::kInvalidArgument);
  ASSERT_TRUE(side(0).done(side(0).read(1, side(1), {{0, 0, 100}})));
}

TEST_P(EngineTransfer, HandleThatStretchesTheRegionIsRefused) {
  auto forged = side(1).region->handle();
  forged.size *= 2;
  const auto read = side(0).post(TestTransfer::readFrom(
      1, side(0).region, forged, {{0, int64_t(kSize), 100}}));
  ASSERT_TRUE(side(0).wait(*read));
  EXPECT_EQ(read->status().code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(world->passes(0, 1));
}

TEST_P(EngineTransfer, HandleOfAnotherProcessIsToldByName) {
  const auto read = side(0).post(TestTransfer::readFrom(
      1, side(0).region, side(0).region->handle(), {{0, 0, 100}}));
  ASSERT_TRUE(side(0).wait(*read));
  EXPECT_EQ(read->status().code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(
      read->status().message().find("has ended, or is another rank"),
      std::string::npos)
      << read->status().message();
}

TEST_P(EngineTransfer, PeerThatEndsFailsWhatIsGoingOn) {
  ASSERT_TRUE(side(0).done(side(0).read(1, side(1), {{0, 0, 100}})));
  std::vector<TestTransferPtr> reads;
  constexpr int64_t kReads = 20, kShare = int64_t(kSize) / kReads;
  for (int64_t i = 0; i < kReads; ++i) {
    reads.push_back(side(0).read(1, side(1), {{i * kShare, 0, kShare}}));
  }
  world->stop(1);
  for (const auto& read : reads) {
    ASSERT_TRUE(side(0).wait(*read));
    EXPECT_TRUE(eventually([&] { return read->ends() == 1; }));
  }
  // If all reads ended first, the news of the peer's leaving may still be on
  // the way.
  auto& node = (*world)[0];
  ASSERT_TRUE(
      eventually([&] { return node.engine->hasFailedPeer(*node.group); }));
  const auto late = side(0).read(1, side(1), {{0, 0, 100}});
  ASSERT_TRUE(side(0).wait(*late));
  EXPECT_EQ(late->status().code(), ErrorCode::kPeerFailed);
  side(0).deregister();
}

// Over Gloo, since carriers can be stalled.
class StalledTransfer : public EngineTransfer {
 protected:
  // Returns whether rank 1's region is closed. Asks by a read into the region
  // of two parts, with an invalid handle for the second part, so that the read
  // ends when posted.
  bool isClosed() {
    auto other = side(0).region->handle();
    other.instance.at(0) ^= std::byte{1};
    Transfer::Parts parts;
    for (const auto& handle : {side(0).region->handle(), other}) {
      const auto one =
          TestTransfer::readFrom(0, side(1).region, handle, {{0, 0, 4096}});
      parts.push_back(one->parts().at(0));
    }
    const auto read = side(1).post(
        std::make_shared<TestTransfer>(Operation::Kind::kRead, 0, parts));
    EXPECT_TRUE(read->done());
    return read->status().message().find("deregistered") != std::string::npos;
  }
};

// A silent peer may still be copying when the owner's engine ends.
TEST_P(StalledTransfer, MemoryOfAnOwnerThatEndsIsNotFreed) {
  auto memory = std::make_shared<Bytes>(kSize);
  const std::weak_ptr<Bytes> watch = memory;
  const auto region = (*world)[1].engine->registerMemory(
      {memory->data(), memory->size()}, "kept", memory);
  memory.reset();
  const auto read = [&] {
    return side(0).post(TestTransfer::readFrom(
        1, side(0).region, region->handle(), {{0, 0, 4096}}));
  };
  ASSERT_TRUE(side(0).done(read()));
  carriers->stall();
  const auto late = read();
  world->stop(1);
  ASSERT_TRUE(side(0).wait(*late));
  EXPECT_FALSE(late->status().ok());
  EXPECT_FALSE(watch.expired());
}

// A first caller gives up, while a second caller waits for peers to give the
// region back.
TEST_P(StalledTransfer, RegionStaysClosedWhileAnyDeregistersIt) {
  ASSERT_TRUE(side(0).done(side(0).read(1, side(1), {{0, 0, 4096}})));
  carriers->stall();
  std::thread patient([&] { EXPECT_NO_THROW(side(1).deregister(60000)); });
  EXPECT_TRUE(eventually([&] { return isClosed(); }));
  EXPECT_THROW(side(1).deregister(100), Error);
  EXPECT_TRUE(eventually([&] { return isClosed(); }));
  world->stop(0); // gives the region back
  patient.join();
}

// A stalled peer never gives the region back; but while a group with the peer
// remains, the peer may merely be slow.
TEST_P(
    StalledTransfer,
    RegionOfOneThatNeverGivesItBackIsHadWhenItsGroupIsLeft) {
  ASSERT_TRUE(side(0).done(side(0).read(1, side(1), {{0, 0, 4096}})));
  carriers->stall();
  const auto kept = testing::statusOf([&] { side(1).deregister(100); });
  EXPECT_EQ(kept.code(), ErrorCode::kTimeout);
  EXPECT_TRUE(
      mentions(kept, ("pid " + std::to_string(getpid()) + " on ").c_str()))
      << kept.message();
  EXPECT_TRUE(mentions(kept, "close the endpoints")) << kept.message();
  world->leave(1, (*world)[1].group);
  EXPECT_NO_THROW(side(1).deregister(100));
}

const Way kGlooWay{"Gloo", "gloo", RoutePolicy::kGloo};
std::string nameOf(const ::testing::TestParamInfo<Way>& instance) {
  return instance.param.name;
}
// Else a waiting thread would count as idle amid copies, and sleep.
TEST(EngineLook, IsNewsIfItHasCopied) {
  Cluster world(2);
  OneSided here(world[0], kSize, 1), there(world[1], kSize, 2);
  ASSERT_TRUE(here.done(here.read(1, there, {{0, 0, 1}}))); // connects
  // The last look finds the transfer ended, and earlier looks have copied. The
  // engine's own thread may be quicker, but not every time.
  int most = 0;
  const auto deadline = deadlineAfter(milliseconds(30000));
  while (most < 3 && Clock::now() < deadline) {
    int looks = 0;
    const auto read = here.read(1, there, {{0, 0, int64_t{kSize}}});
    while (!read->done()) {
      looks += here.node.engine->poke(read.get()) ? 1 : 0;
    }
    most = std::max(most, looks);
  }
  EXPECT_GE(most, 3);
}

INSTANTIATE_TEST_SUITE_P(
    Ways,
    EngineTransfer,
    ::testing::Values(
        Way{"Shm", "shm"},
        Way{"Tcp", "tcp", RoutePolicy::kTcp},
        kGlooWay,
        Way{"Rdma", "rdma", RoutePolicy::kAuto, true}),
    nameOf);
INSTANTIATE_TEST_SUITE_P(
    Ways,
    StalledTransfer,
    ::testing::Values(kGlooWay),
    nameOf);

} // namespace
} // namespace dlslime::testing
