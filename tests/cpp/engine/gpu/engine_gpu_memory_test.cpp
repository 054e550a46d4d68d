// Memory of GPUs shared and mapped by engines, given back and shared again: two
// engines in a process, as the fake driver permits for mapped memory.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "fakes/gpu/gpu_region.h"
#include "fakes/gpu/gpu_world.h"

namespace dlslime::testing {
namespace {

constexpr size_t kPiece = 512 << 10;
constexpr int kPieces = 4;
constexpr size_t kSize = kPiece * kPieces;

class EngineGpuMemory : public GpuWorld {
 protected:
  // Reads all of rank 1's region at rank 0.
  void expectRead() {
    const auto transfer = TestTransfer::make(
        Operation::Kind::kRead,
        1,
        ours,
        theirs->handle(),
        {{0, 0, int64_t{kSize}}});
    transfer->onDevice = std::make_unique<OnDevice>();
    transfer->onDevice->stream = one.place();
    node(0).engine->transfer(*node(0).group, transfer);
    ASSERT_TRUE(endsWell(*transfer));
    EXPECT_TRUE(one.content(here) == one.content(there));
  }
  // Sends all of rank 1's memory to rank 0.
  void expectMessage(uint32_t tag) {
    const auto receive = one.receive(node(0), 1, tag, here);
    const auto send = other.send(node(1), 0, tag, there);
    ASSERT_TRUE(endsWell(*receive));
    ASSERT_TRUE(endsWell(*send));
    EXPECT_TRUE(one.content(here) == one.content(there));
  }
  void trim(int rank) {
    node(rank).engine->trim(*node(rank).group);
  }
  int mapped() {
    return fake.live("imports");
  }
  void TearDown() override {
    const auto deadline = deadlineAfter(milliseconds(10000));
    node(0).engine->deregister(ours, deadline);
    node(1).engine->deregister(theirs, deadline);
    EXPECT_EQ(log.count("pinned memory"), 0U) << log.all();
  }

  EngineGpuMemory() {
    fake.fill(
        reinterpret_cast<cuda::DevicePointer>(there.data), pattern(kSize, 5));
  }

  MemoryView here = one.mapped(kPiece, kPieces);
  MemoryView there = other.mapped(kPiece, kPieces);
  RegionPtr ours = node(0).engine->registerMemory(here, "here", nullptr);
  RegionPtr theirs = node(1).engine->registerMemory(there, "there", nullptr);
};

TEST_P(EngineGpuMemory, WhatIsLentStaysSharedWhenItsOwnerTrims) {
  expectRead();
  EXPECT_EQ(mapped(), kPieces);
  trim(1);
  expectRead();
  EXPECT_EQ(mapped(), kPieces) << "and mapped";
}

TEST_P(EngineGpuMemory, MessagesAreSharedAgainAfterEitherEndHasTrimmed) {
  expectMessage(1);
  trim(0);
  EXPECT_EQ(mapped(), 0);
  expectMessage(2);
  EXPECT_EQ(mapped(), kPieces);
  trim(1);
  EXPECT_TRUE(eventually([&] { return mapped() == 0; })) << "as it was asked";
  expectMessage(3);
  EXPECT_EQ(mapped(), kPieces);
  EXPECT_EQ(counters(0).cudaIpcMessages, 3U);
}

TEST_P(EngineGpuMemory, TrimRefusesWhileAMessageIsOnItsWayAndOthersKeepTheirs) {
  const auto send = other.send(node(1), 0, 1, there);
  EXPECT_THROW(trim(1), Error);
  trim(0); // no pending operation
  const auto receive = one.receive(node(0), 1, 1, here);
  ASSERT_TRUE(endsWell(*receive));
  ASSERT_TRUE(endsWell(*send));
  EXPECT_EQ(counters(0).cudaIpcMessages, 1U);
}

// A message of a second group has been announced.
TEST_P(EngineGpuMemory, TrimOfOneGroupLeavesWhatAnothersPeerMayGetAt) {
  const std::shared_ptr<Group> groups[] = {
      world->join(0, "second"), world->join(1, "second")};
  const auto countersOf = [&](int rank) {
    return node(rank).engine->report(*groups[rank]).at(0).counters;
  };
  expectMessage(1);
  const auto make = [&](Operation::Kind kind, int rank, GpuSide& gpu) {
    auto operation = std::make_shared<GpuOperation>(
        kind, 1 - rank, 7, rank == 0 ? here : there, gpu.stream());
    kind == Operation::Kind::kSend
        ? node(rank).engine->send(*groups[rank], operation)
        : node(rank).engine->receive(*groups[rank], operation);
    return operation;
  };
  const auto send = make(Operation::Kind::kSend, 1, other);
  ASSERT_TRUE(
      eventually([&] { return countersOf(1).rendezvousMessages == 1; }));
  trim(1);
  const auto receive = make(Operation::Kind::kReceive, 0, one);
  ASSERT_TRUE(endsWell(*receive));
  ASSERT_TRUE(endsWell(*send));
  EXPECT_EQ(countersOf(0).cudaIpcMessages, 1U);
}

// Engines that keep few descriptors open, and share memory of more pieces.
class FewDescriptors : public GpuWorld {
 protected:
  static constexpr int kMost = 50, kEach = 40;
  static constexpr size_t kSmall = 64 << 10; // bytes of a piece

  FewDescriptors() {
    rlimit before{};
    getrlimit(RLIMIT_NOFILE, &before);
    const rlimit few{4 * kMost, before.rlim_max};
    setrlimit(RLIMIT_NOFILE, &few);
    // The engine reads the limit when it first meets memory of a GPU.
    for (int rank = 0; rank < 2; ++rank) {
      auto& engine = *node(rank).engine;
      engine.deregister(
          engine.registerMemory(here, "it", nullptr),
          deadlineAfter(milliseconds(10000)));
    }
    setrlimit(RLIMIT_NOFILE, &before);
  }
  // Sends a message, and returns the number of messages so far from GPU to GPU.
  uint64_t afterSending(MemoryView from, unsigned seed) {
    const auto bytes = pattern(from.size, seed);
    fake.fill(reinterpret_cast<cuda::DevicePointer>(from.data), bytes);
    const auto receive = one.receive(node(0), 1, 1, here);
    const auto send = other.send(node(1), 0, 1, from);
    EXPECT_TRUE(endsWell(*receive));
    EXPECT_TRUE(endsWell(*send));
    EXPECT_TRUE(one.content(here) == bytes);
    return counters(0).cudaIpcMessages;
  }

  MemoryView here = one.mapped(kSmall, kEach);
  MemoryView first = other.mapped(kSmall, kEach);
  MemoryView second = other.mapped(kSmall, kEach);
};

TEST_P(FewDescriptors, ThatWereClosedAreAskedForAgainAndStagedMeanwhile) {
  EXPECT_EQ(afterSending(first, 1), 1U);
  EXPECT_EQ(afterSending(second, 2), 2U); // closes descriptors of `first`
  EXPECT_EQ(afterSending(first, 3), 3U) << "it is mapped";
  node(0).engine->trim(*node(0).group);
  EXPECT_EQ(afterSending(first, 4), 3U);
  EXPECT_EQ(afterSending(first, 5), 4U);
  EXPECT_EQ(log.count("pinned memory"), 0U) << log.all();
}

INSTANTIATE_TEST_SUITE_P(
    Routes,
    FewDescriptors,
    ::testing::Values(GpuWay{"Shm"}),
    nameOfWay);

INSTANTIATE_TEST_SUITE_P(
    Routes,
    EngineGpuMemory,
    ::testing::Values(GpuWay{"Shm"}),
    nameOfWay);

} // namespace
} // namespace dlslime::testing
