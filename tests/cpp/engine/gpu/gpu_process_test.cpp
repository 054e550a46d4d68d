// Memory of GPUs between processes, each mapping the peer's memory, on the fake
// driver.
#include <gtest/gtest.h>
#include <signal.h>

#include "fakes/gpu/gpu_process.h"
#include "fakes/gpu/gpu_region.h"

namespace dlslime::testing {
namespace {

// Sends back each message, from mapped memory in which a piece is replaced at
// each turn. Arguments: a folder, and the number of turns.
const ChildRole kMappedEchoer("gpu mapped echo", [](const auto& arguments) {
  FakeGpu fake;
  GpuSide gpu(fake, 1);
  auto node = joinAs(arguments.at(0), 1);
  const auto memory = mappedMemory(gpu);
  for (int turn = 0; turn < std::stoi(arguments.at(1)); ++turn) {
    auto* const base = memory.data - 1000;
    gpu.remap(base + kPiece * static_cast<size_t>(turn % kPieces), kPiece);
    if (!echo(node, gpu, memory)) {
      return 2;
    }
    if (fake.live("handles") != 0) {
      return 3;
    }
  }
  node.engine->leave(*node.group);
  return 0;
});

// Sends back each message, from mapped memory that stays. Arguments: a folder,
// and the number of turns.
const ChildRole kKeeper("gpu kept echo", [](const auto& arguments) {
  FakeGpu fake;
  GpuSide gpu(fake, 1);
  auto node = joinAs(arguments.at(0), 1);
  const auto memory = mappedMemory(gpu);
  for (int turn = 0; turn < std::stoi(arguments.at(1)); ++turn) {
    if (!echo(node, gpu, memory)) {
      return 2;
    }
  }
  node.engine->leave(*node.group);
  return 0;
});

// Sends back each message, from memory allocated anew at each turn. Arguments:
// a folder, and the number of turns.
const ChildRole kEchoer("gpu echo", [](const auto& arguments) {
  FakeGpu fake;
  GpuSide gpu(fake, 1);
  auto node = joinAs(arguments.at(0), 1);
  for (int turn = 0; turn < std::stoi(arguments.at(1)); ++turn) {
    const auto memory = gpu.memory(kSize);
    if (!echo(node, gpu, memory)) {
      return 2;
    }
    fake.free(reinterpret_cast<cuda::DevicePointer>(memory.data));
    if (fake.live("imports") > 1) { // the peer has a single allocation
      return 4;
    }
  }
  node.engine->leave(*node.group);
  return 0;
});

// Lends memory of a GPU, which begins as pattern(kSize, 9), until told to end.
// Argument: a folder.
const ChildRole kLender("gpu lender", [](const auto& arguments) {
  FakeGpu fake;
  GpuSide gpu(fake, 1);
  auto node = joinAs(arguments.at(0), 1);
  GpuRegion memory(node, &gpu, pattern(kSize, 9));
  if (!endsWell(*node.send(0, kThere, encode(memory.handle())))) {
    return 2;
  }
  if (!endsWell(*node.receive(0, kTurn, 1))) {
    return 3;
  }
  memory.deregister();
  node.engine->leave(*node.group);
  return 0;
});

TEST_F(GpuProcess, AllocationsAreMappedOnceAndLetGoWhenTheyAreFreed) {
  constexpr int kTurns = 5;
  ChildProcess child("gpu echo", {folder.path(), std::to_string(kTurns)});
  for (unsigned i = 0; i < kTurns; ++i) {
    ASSERT_TRUE(turn(i)) << i;
    EXPECT_LE(fake.live("imports"), 1) << i;
    // The child has freed its memory, and allocated new memory at the address.
    EXPECT_TRUE(eventually([&] { return fake.live("imports") == 0; })) << i;
    const auto report = node.engine->report(*node.group).at(0);
    EXPECT_EQ(report.route, "shm");
    EXPECT_EQ(report.counters.cudaIpcMessages, i + 1);
  }
  EXPECT_EQ(child.join(), 0);
  EXPECT_EQ(log.count("pinned memory"), 0U) << log.all();
}

TEST_F(GpuProcess, MappedMemoryGoesByDescriptorsOfItsPieces) {
  constexpr int kTurns = 7;
  source = mappedMemory(gpu);
  target = mappedMemory(gpu);
  ChildProcess child(
      "gpu mapped echo", {folder.path(), std::to_string(kTurns)});
  for (unsigned i = 0; i < kTurns; ++i) {
    ASSERT_TRUE(turn(i)) << i;
    // A replaced piece is unmapped soon, perhaps before the next piece comes.
    EXPECT_TRUE(eventually([&] { return fake.live("imports") <= kPieces; }))
        << i;
    EXPECT_EQ(fake.live("handles"), 0);
  }
  const auto report = node.engine->report(*node.group).at(0);
  EXPECT_EQ(report.counters.cudaIpcMessages, kTurns);
  EXPECT_EQ(child.join(), 0);
  EXPECT_EQ(log.count("pinned memory"), 0U) << log.all();
}

// The first messages go through pinned memory, until all descriptors have come.
TEST_F(GpuProcess, MappedMemoryOfAnUnreadableProcessIsHandedOver) {
  constexpr int kTurns = 20;
  Config config;
  config.crossMemoryAttach = false;
  const TemporaryFolder other;
  node = joinAs(other.path(), 0, config);
  source = mappedMemory(gpu);
  target = mappedMemory(gpu);
  ChildProcess child("gpu kept echo", {other.path(), std::to_string(kTurns)});
  int imports = 0;
  for (unsigned i = 0; i < kTurns; ++i) {
    ASSERT_TRUE(turn(i)) << i;
    imports = std::max(imports, fake.live("imports"));
    std::this_thread::sleep_for(milliseconds(11)); // the pause between tries
  }
  EXPECT_EQ(imports, int{kPieces});
  const auto report = node.engine->report(*node.group).at(0);
  EXPECT_GT(report.counters.cudaIpcMessages, 0U);
  EXPECT_EQ(child.join(), 0);
  EXPECT_EQ(log.count("pinned memory"), 0U) << log.all();
}

TEST_F(GpuProcess, WhatCantBeMappedGoesThroughPinnedMemoryAndIsSaid) {
  fake.fail("cuIpcOpenMemHandle", cuda::Result::kPeerAccessUnsupported, 0, 100);
  ChildProcess child("gpu echo", {folder.path(), "3"});
  for (unsigned i = 0; i < 3; ++i) {
    ASSERT_TRUE(turn(i)) << i;
    EXPECT_EQ(fake.live("imports"), 0);
  }
  EXPECT_EQ(child.join(), 0);
  EXPECT_GT(log.count("cuIpcOpenMemHandle"), 0U) << log.all();
}

TEST_F(GpuProcess, WhatCantBeSharedGoesThroughPinnedMemoryAndIsSaidOnce) {
  fake.denyIpc(reinterpret_cast<cuda::DevicePointer>(source.data));
  ChildProcess child("gpu echo", {folder.path(), "3"});
  for (unsigned i = 0; i < 3; ++i) {
    ASSERT_TRUE(turn(i)) << i;
  }
  EXPECT_EQ(child.join(), 0);
  EXPECT_EQ(log.count("cudaMallocAsync"), 1U) << log.all();
}

TEST_F(GpuProcess, APeerThatIsKilledLeavesNothingMapped) {
  ChildProcess child("gpu echo", {folder.path(), "1000000"});
  ASSERT_TRUE(turn(1));
  const auto report = node.engine->report(*node.group).at(0);
  EXPECT_EQ(report.counters.cudaIpcMessages, 1U); // was mapped
  const auto waiting = gpu.receive(node, 1, kTurn, target);
  ASSERT_TRUE(node.engine->blockStream(gpu.place(), *waiting));
  child.signal(SIGKILL);
  ASSERT_TRUE(eventually([&] { return waiting->done(); }));
  EXPECT_EQ(waiting->status().code(), ErrorCode::kPeerFailed)
      << waiting->status().message();
  EXPECT_TRUE(eventually([&] { return gpu.idle(); }));
  EXPECT_TRUE(eventually([&] { return fake.live("imports") == 0; }));
}

class GpuLender : public GpuProcess {
 protected:
  GpuLender() {
    const auto told = node.receive(1, kThere, 4096);
    EXPECT_TRUE(endsWell(*told));
    theirs = decodeRegion(ByteSpan(told->buffer()).first(told->bytes()));
  }
  void expectItAllGoes() {
    TestTransfer::Pieces pieces;
    for (int64_t i = 0; i < 100; ++i) {
      pieces.push_back({i * 20'000, (99 - i) * 20'000, 16'000});
    }
    const auto read = ours.read(1, theirs, pieces);
    ASSERT_TRUE(endsWell(*read)) << read->status().message();
    const auto there = pattern(kSize, 9);
    const auto here = ours.content();
    for (const auto& [at, from, size] : pieces) {
      ASSERT_EQ(
          std::memcmp(here.data() + at, there.data() + from, size_t(size)), 0);
    }
    const auto write = ours.write(1, theirs, {{0, 5, kSize - 5}});
    ASSERT_TRUE(endsWell(*write)) << write->status().message();
    const auto back = ours.read(1, theirs, {{0, 5, 1}, {1, 6, kSize - 6}});
    ASSERT_TRUE(endsWell(*back)) << back->status().message();
    EXPECT_TRUE(ours.content() == here);
  }
  // Lets the lender take its memory back and end.
  void end() {
    ASSERT_TRUE(endsWell(*node.send(1, kTurn, Bytes(1))));
    EXPECT_EQ(child.join(), 0);
    ours.deregister();
    EXPECT_TRUE(eventually([&] { return fake.live("imports") == 0; }));
  }

  ChildProcess child{"gpu lender", {folder.path()}};
  GpuRegion ours{node, &gpu, pattern(kSize, 1)};
  RegionHandle theirs;
};

TEST_F(GpuLender, MemoryIsReadAndWrittenByTheReadersGpu) {
  expectItAllGoes();
  EXPECT_EQ(fake.live("imports"), 1);
  EXPECT_EQ(log.count("pinned memory"), 0U) << log.all();
  end();
}

TEST_F(GpuLender, BatchesOfPagesGoByOneLaunch) {
  constexpr int64_t kPage = 16 << 10, kPages = 100;
  TestTransfer::Pieces pages;
  for (int64_t i = 0; i < kPages; ++i) {
    pages.push_back({i * kPage, (kPages - 1 - i) * kPage, kPage});
  }
  const auto reads = [&] { return endsWell(*ours.read(1, theirs, pages)); };
  // The kernel's trial may end only after the first batch.
  ASSERT_TRUE(eventually([&] { return reads() && fake.live("launches") > 1; }));
  fake.fail("cuMemcpyAsync", cuda::Result::kUnknown, 0, 1000);
  fake.fail("cuMemcpyBatchAsync", cuda::Result::kUnknown, 0, 1000);
  const int launched = fake.live("launches");
  EXPECT_TRUE(reads());
  EXPECT_EQ(fake.live("launches"), launched + 1);
  const auto there = pattern(kSize, 9);
  const auto here = ours.content();
  for (const auto& [at, from, size] : pages) {
    ASSERT_EQ(
        std::memcmp(here.data() + at, there.data() + from, size_t(size)), 0);
  }
  end();
}

TEST_F(GpuLender, TrimOfTheReaderMapsItAgain) {
  expectItAllGoes();
  node.engine->trim(*node.group);
  EXPECT_EQ(fake.live("imports"), 0);
  const auto again = ours.read(1, theirs, {{0, 0, kSize}});
  ASSERT_TRUE(endsWell(*again)) << again->status().message();
  EXPECT_EQ(fake.live("imports"), 1);
  EXPECT_EQ(log.count("pinned memory"), 0U) << log.all();
  end();
}

TEST_F(GpuLender, WhatCantBeMappedGoesThroughPinnedMemoryAndIsSaid) {
  fake.fail("cuIpcOpenMemHandle", cuda::Result::kPeerAccessUnsupported, 0, 100);
  expectItAllGoes();
  EXPECT_EQ(fake.live("imports"), 0);
  EXPECT_EQ(log.count("cuIpcOpenMemHandle"), 1U) << log.all();
  end();
}

TEST_F(GpuLender, ThatIsKilledFailsTransfersAndLeavesNothingMapped) {
  const auto read = ours.read(1, theirs, {{0, 0, kSize}});
  ASSERT_TRUE(endsWell(*read)) << read->status().message();
  child.signal(SIGKILL);
  const auto late = [&] {
    const auto transfer = ours.read(1, theirs, {{0, 0, kSize}});
    return eventually([&] { return transfer->done(); }) &&
        transfer->status().code() == ErrorCode::kPeerFailed;
  };
  EXPECT_TRUE(eventually(late));
  EXPECT_TRUE(eventually([&] { return fake.live("imports") == 0; }));
  ours.deregister();
}

} // namespace
} // namespace dlslime::testing
