// One-sided transfers with memory of GPUs between engines, on the fake driver,
// over every route of the machine.
#include <gtest/gtest.h>

#include "fakes/gpu/gpu_region.h"
#include "fakes/gpu/gpu_world.h"
#include "fakes/status_of.h"

namespace dlslime::testing {
namespace {

constexpr size_t kSize = 4 << 20;
constexpr milliseconds kMoment{30};

class EngineGpuTransfer : public GpuWorld {
 protected:
  // Returns a region of rank 0 on the GPU `one`, of rank 1 on `other`, or of
  // processors.
  GpuRegion region(int rank, bool onGpu, unsigned seed) {
    auto* const gpu = rank == 0 ? &one : &other;
    return {node(rank), onGpu ? gpu : nullptr, pattern(kSize, seed)};
  }
};

// Ways on which bytes are staged.
class StagedGpuTransfer : public EngineGpuTransfer {};

// The way on which NICs access memory of GPUs.
class GpuDirectTransfer : public EngineGpuTransfer {};

// Returns large and small pieces, nowhere adjacent, backwards at the peer.
TestTransfer::Pieces scattered() {
  TestTransfer::Pieces pieces;
  constexpr int64_t kPage = 7000;
  const auto half = static_cast<int64_t>(kSize) / 2;
  for (int64_t i = 0; i < 150; ++i) {
    pieces.push_back({i * 2 * kPage, (149 - i) * 2 * kPage + 3, kPage - i});
  }
  pieces.push_back({half + 100, half + 5, half - 1000});
  return pieces;
}

// Returns `to` after the transfer of the pieces of `from`.
Bytes moved(
    Bytes to,
    const Bytes& from,
    const TestTransfer::Pieces& pieces,
    bool write) {
  for (const auto& [here, there, length] : pieces) {
    std::memcpy(
        to.data() + (write ? there : here),
        from.data() + (write ? here : there),
        size_t(length));
  }
  return to;
}

TEST_P(EngineGpuTransfer, EveryPairOfMemories) {
  const auto pieces = scattered();
  for (const auto& [gpuHere, gpuThere] :
       {std::pair{true, true}, {true, false}, {false, true}}) {
    auto here = region(0, gpuHere, 1), there = region(1, gpuThere, 2);
    const auto read = here.read(1, there, pieces);
    ASSERT_TRUE(endsWell(*read)) << gpuHere << gpuThere;
    auto expected = moved(here.first(), there.first(), pieces, false);
    EXPECT_TRUE(here.content() == expected) << gpuHere << gpuThere;
    const auto write = here.write(1, there, {{500, 0, 3'000'000}});
    ASSERT_TRUE(endsWell(*write)) << gpuHere << gpuThere;
    expected = moved(there.first(), expected, {{500, 0, 3'000'000}}, true);
    EXPECT_TRUE(there.content() == expected) << gpuHere << gpuThere;
    EXPECT_TRUE(eventually([&] { return write->releases() == 1; }));
    here.deregister();
    there.deregister();
  }
}

// A later stream, made when a peer first uses the region, would be made under
// the engine's lock.
TEST_P(EngineGpuTransfer, WhatAGpuNeedsIsMadeWhenItsMemoryIsRegistered) {
  const auto view = other.filled(pattern(kSize));
  fake.fail("cuStreamCreateWithPriority", cuda::Result::kOutOfMemory);
  auto& engine = *node(1).engine;
  const auto refused =
      statusOf([&] { engine.registerMemory(view, "memory", nullptr); });
  EXPECT_TRUE(mentions(refused, "cuStreamCreate")) << refused.message();
  const auto region = engine.registerMemory(view, "memory", nullptr);
  engine.deregister(region, deadlineAfter(milliseconds(1000)));
}

TEST_P(EngineGpuTransfer, BeginsWhenItsStreamComesThere) {
  auto here = region(0, true, 1), there = region(1, true, 2);
  const auto fresh = pattern(kSize, 3);
  const auto source = one.filled(fresh);
  one.pause();
  one.copy(here.view(), source); // the stream makes the bytes
  const auto write = here.write(1, there, {{0, 0, kSize}});
  std::this_thread::sleep_for(kMoment);
  EXPECT_FALSE(write->done());
  EXPECT_TRUE(there.content() == there.first());
  one.go();
  ASSERT_TRUE(endsWell(*write));
  EXPECT_TRUE(there.content() == fresh);
}

TEST_P(EngineGpuTransfer, OthersDoNotWaitForAStreamThatIsNotTheirs) {
  auto here = region(0, true, 1), there = region(1, true, 2);
  auto plain = region(0, false, 3);
  one.pause();
  const auto held = here.read(1, there, {{0, 0, 100}});
  ASSERT_TRUE(endsWell(*plain.read(1, there, {{0, 0, 100}})));
  auto second = GpuSide(fake, 0); // a second stream of the GPU
  auto mine = GpuRegion(node(0), &second, pattern(kSize, 4));
  ASSERT_TRUE(endsWell(*mine.read(1, there, {{0, 0, 100}})));
  EXPECT_FALSE(held->done());
  one.go();
  ASSERT_TRUE(endsWell(*held));
}

TEST_P(EngineGpuTransfer, AStreamWaitsForIt) {
  auto here = region(0, true, 1), there = region(1, true, 2);
  const auto result = one.memory(kSize);
  const auto read = here.read(1, there, {{0, 0, kSize}});
  ASSERT_TRUE(node(0).engine->blockStream(one.place(), *read));
  one.copy(result, here.view());
  EXPECT_TRUE(eventually([&] { return one.idle(); }));
  EXPECT_TRUE(one.content(result) == there.first());
}

TEST_P(EngineGpuTransfer, WhatIsCancelledWhileHeldUsesItsMemoryNoMore) {
  auto here = region(0, true, 1), there = region(1, true, 2);
  one.pause();
  const auto read = here.read(1, there, {{0, 0, kSize}});
  node(0).engine->cancel(
      *node(0).group, read, Status(ErrorCode::kCancelled, "enough"));
  ASSERT_TRUE(ends(*read));
  EXPECT_EQ(read->status().code(), ErrorCode::kCancelled);
  EXPECT_THROW(here.deregister(), Error); // the stream has not passed the read
  one.go();
  ASSERT_TRUE(eventually([&] { return read->releases() == 1; }));
  here.deregister();
  EXPECT_TRUE(here.content() == here.first());
}

TEST_P(EngineGpuTransfer, CancelledInTheMiddleItEndsOnce) {
  auto here = region(0, true, 1), there = region(1, true, 2);
  fake.delay(2000);
  std::vector<TestTransferPtr> transfers;
  for (int i = 0; i < 5; ++i) {
    const auto transfer = i % 2 == 0 ? here.read(1, there, scattered())
                                     : here.write(1, there, scattered());
    std::this_thread::sleep_for(milliseconds(i));
    node(0).engine->cancel(
        *node(0).group, transfer, Status(ErrorCode::kCancelled, "enough"));
    transfers.push_back(transfer);
    // Cancelled while held or while copied, a transfer may end before its
    // release or after.
    ASSERT_TRUE(eventually(
        [&] { return transfer->ends() > 0 && transfer->releases() > 0; }));
  }
  here.deregister();
  there.deregister();
  EXPECT_TRUE(world->passes(0, 1));
  for (const auto& transfer : transfers) {
    EXPECT_EQ(transfer->ends(), 1);
    EXPECT_EQ(transfer->releases(), 1);
  }
}

TEST_P(EngineGpuTransfer, NoteIsReceivedAfterTheBytes) {
  auto here = region(0, true, 1), there = region(1, true, 2);
  for (int i = 0; i < 5; ++i) {
    const auto at = int64_t{i} * 700'000;
    const auto noted = node(1).receive(0, 77, 8);
    const auto write =
        here.make(Operation::Kind::kWrite, 1, there, {{at, at, 700'000}});
    write->note = makeSend(1, 77, pattern(8, unsigned(i)));
    here.post(write);
    ASSERT_TRUE(endsWell(*noted));
    const auto now = there.content();
    ASSERT_EQ(
        std::memcmp(now.data() + at, here.first().data() + at, 700'000), 0);
    ASSERT_TRUE(endsWell(*write));
  }
}

TEST_P(StagedGpuTransfer, ACopyThatFailsHereFailsTheTransfer) {
  auto here = region(0, true, 1), there = region(1, false, 2);
  ASSERT_TRUE(endsWell(*here.read(1, there, {{0, 0, 1}}))); // connects
  for (const bool write : {false, true}) {
    fake.fail("cuMemcpyAsync", cuda::Result::kIllegalAddress);
    const auto transfer = write ? here.write(1, there, scattered())
                                : here.read(1, there, scattered());
    ASSERT_TRUE(ends(*transfer));
    EXPECT_NE(
        transfer->status().message().find("cuMemcpyAsync"), std::string::npos)
        << transfer->status().message();
    EXPECT_TRUE(eventually([&] { return transfer->releases() == 1; }));
  }
  ASSERT_TRUE(endsWell(*here.read(1, there, {{0, 0, kSize}})));
  here.deregister();
  there.deregister();
}

TEST_P(StagedGpuTransfer, ACopyThatFailsAtTheOwnerFailsTheTransfer) {
  auto here = region(0, false, 1), there = region(1, true, 2);
  ASSERT_TRUE(endsWell(*here.read(1, there, {{0, 0, 1}})));
  for (const bool write : {false, true}) {
    fake.fail("cuMemcpyAsync", cuda::Result::kIllegalAddress);
    const auto transfer = write ? here.write(1, there, scattered())
                                : here.read(1, there, scattered());
    ASSERT_TRUE(ends(*transfer));
    EXPECT_EQ(transfer->status().code(), ErrorCode::kPeerFailed);
    EXPECT_NE(
        transfer->status().message().find("the peer's log says why"),
        std::string::npos)
        << transfer->status().message();
  }
  EXPECT_EQ(log.count("could not serve a peer"), 2U) << log.all();
  ASSERT_TRUE(endsWell(*here.write(1, there, {{0, 0, kSize}})));
  EXPECT_TRUE(there.content() == here.content());
  here.deregister();
  there.deregister();
}

TEST_P(EngineGpuTransfer, MemoryIsGivenBackWhenNothingCopiesIt) {
  auto here = region(0, true, 1), there = region(1, true, 2);
  fake.delay(3000);
  one.pause();
  const auto read = here.read(1, there, {{0, 0, kSize}});
  EXPECT_THROW(here.deregister(), Error); // a local transfer uses the region
  one.go();
  there.deregister(); // waits for the peer's copies
  ASSERT_TRUE(ends(*read));
  here.deregister();
  const auto late = here.read(1, there, {{0, 0, 1}});
  ASSERT_TRUE(ends(*late));
  EXPECT_EQ(late->status().code(), ErrorCode::kInvalidArgument);
}

TEST_P(EngineGpuTransfer, PeerThatEndsFailsWhatIsGoingOn) {
  auto here = region(0, true, 1), there = region(1, true, 2);
  ASSERT_TRUE(endsWell(*here.read(1, there, {{0, 0, 100}})));
  fake.delay(1000);
  std::vector<TestTransferPtr> transfers;
  for (int i = 0; i < 6; ++i) {
    transfers.push_back(
        i % 2 == 0 ? here.read(1, there, scattered())
                   : here.write(1, there, scattered()));
  }
  world->stop(1);
  for (const auto& transfer : transfers) {
    ASSERT_TRUE(eventually(
        [&] { return transfer->releases() == 1 && transfer->ends() == 1; }));
  }
  here.deregister();
}

TEST_P(GpuDirectTransfer, NothingIsCopied) {
  auto here = region(0, true, 1), there = region(1, true, 2);
  auto plain = region(1, false, 3);
  fake.fail("cuMemcpyAsync", cuda::Result::kUnknown, 0, 1000);
  fake.fail("cuMemcpyBatchAsync", cuda::Result::kUnknown, 0, 1000);
  auto expected = here.first();
  for (auto* const theirs : {&there, &plain}) {
    ASSERT_TRUE(endsWell(*here.read(1, *theirs, scattered())));
    expected = moved(expected, theirs->first(), scattered(), false);
    EXPECT_TRUE(here.content() == expected);
    ASSERT_TRUE(endsWell(*here.write(1, *theirs, {{0, 0, kSize}})));
    EXPECT_TRUE(theirs->content() == expected);
  }
  EXPECT_EQ(fabric.live()["dma-buf"], 2); // a NIC at each end
  EXPECT_EQ(log.count("registered"), 0U) << log.all();
  here.deregister();
  there.deregister();
  // A thread that registered a region may still hold the result.
  EXPECT_TRUE(eventually([&] { return fabric.live()["dma-buf"] == 0; }));
}

// Expects a registration tried and logged once for each region.
void expectStaged(LogCapture& log, const char* why) {
  EXPECT_EQ(log.count(why), 2U) << log.all();
  EXPECT_EQ(log.count("copied through messages"), 2U) << log.all();
}

TEST_P(GpuDirectTransfer, WithoutADmaBufItIsStagedAndSaid) {
  setenv("FAKE_CUDA_DMA_BUF", "0", 1);
  ASSERT_TRUE(world->passes(0, 1)); // finds the route
  auto here = region(0, true, 1), there = region(1, true, 2);
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(endsWell(*here.write(1, there, {{0, 0, kSize}})));
  }
  EXPECT_TRUE(there.content() == here.first());
  expectStaged(log, "the module nvidia-peermem");
}

TEST_P(GpuDirectTransfer, GpusThatDoNotOrderTheWritesOfNicsAreStaged) {
  setenv("FAKE_CUDA_RDMA_ORDERING", "0", 1);
  ASSERT_TRUE(world->passes(0, 1));
  auto here = region(0, true, 1), there = region(1, true, 2);
  ASSERT_TRUE(endsWell(*here.read(1, there, {{0, 0, kSize}})));
  EXPECT_TRUE(here.content() == there.first());
  expectStaged(log, "does not order the writes of NICs");
}

TEST_P(GpuDirectTransfer, ARefusedDmaBufIsStagedAndSaid) {
  auto here = region(0, true, 1), there = region(1, true, 2);
  // Connects, and registers the rings.
  ASSERT_TRUE(world->passes(0, 1));
  fabric.failRegistrations(EOPNOTSUPP);
  ASSERT_TRUE(endsWell(*here.read(1, there, {{0, 0, kSize}})));
  EXPECT_TRUE(here.content() == there.first());
  expectStaged(log, "refused as well");
}

INSTANTIATE_TEST_SUITE_P(
    Ways,
    EngineGpuTransfer,
    ::testing::ValuesIn(kGpuWays),
    nameOfWay);
INSTANTIATE_TEST_SUITE_P(
    Ways,
    StagedGpuTransfer,
    ::testing::ValuesIn(kGpuWays, std::end(kGpuWays) - 1),
    nameOfWay);
INSTANTIATE_TEST_SUITE_P(
    Ways,
    GpuDirectTransfer,
    ::testing::Values(kRdmaWay),
    nameOfWay);

} // namespace
} // namespace dlslime::testing
