// Memory of GPUs shared and mapped by two processes, given back: on the fake
// driver.
#include <thread>

#include "fakes/gpu/gpu_process.h"

namespace dlslime::testing {
namespace {

// Sends back each message, and waits until the peer's trim() has unmapped all
// memory. Arguments: a folder, and the number of turns.
const ChildRole kSuspended("gpu suspended", [](const auto& arguments) {
  FakeGpu fake;
  GpuSide gpu(fake, 1);
  auto node = joinAs(arguments.at(0), 1);
  const auto memory = mappedMemory(gpu);
  for (int turn = 0; turn < std::stoi(arguments.at(1)); ++turn) {
    if (!echo(node, gpu, memory)) {
      return 2;
    }
    if (!eventually([&] { return fake.live("imports") == 0; })) {
      return 3;
    }
    if (!endsWell(*node.send(0, kTurn, Bytes(1)))) {
      return 4;
    }
  }
  node.engine->leave(*node.group);
  return 0;
});

TEST_F(GpuProcess, WhatIsFreedIsGivenBackWithoutAnotherMessage) {
  ChildProcess child("gpu echo", {folder.path(), "2"});
  ASSERT_TRUE(turn(1)); // then the child frees its memory, and waits
  EXPECT_TRUE(eventually([&] { return fake.live("imports") == 0; }));
  ASSERT_TRUE(turn(2));
  EXPECT_EQ(child.join(), 0);
}

// An allocation can't be mapped while an earlier allocation at its address is
// still mapped.
TEST_F(GpuProcess, AnotherAllocationAtTheSameAddressIsNotTakenForTheFirst) {
  ChildProcess child("gpu echo", {folder.path(), "10"});
  for (unsigned i = 0; i < 10; ++i) {
    ASSERT_TRUE(turn(i)) << i;
    // The old mapping goes at once, unless the child's new allocation has a
    // different address.
    EXPECT_TRUE(eventually([&] { return fake.live("imports") <= 1; })) << i;
  }
  EXPECT_EQ(child.join(), 0);
  EXPECT_EQ(log.count("pinned memory"), 0U) << log.all();
}

// Unmapping waits for all streams, among them a stream that waits for the
// engine.
TEST_F(GpuProcess, NothingIsUnmappedWhileAStreamIsHeldBack) {
  constexpr milliseconds kLonger{1500}; // longer than a pause between looks
  ChildProcess child("gpu echo", {folder.path(), "3"});
  const auto held = gpu.receive(node, 1, kTurn, target);
  ASSERT_TRUE(node.engine->blockStream(gpu.place(), *held));
  GpuSide other(fake, 0); // a stream that is not held back
  const auto turnOfOther = [&] {
    const auto back = other.receive(node, 1, kBack, target);
    const auto there = other.send(node, 1, kThere, source);
    return endsWell(*there) && endsWell(*back);
  };
  ASSERT_TRUE(turnOfOther());
  std::this_thread::sleep_for(kLonger); // the child frees the memory
  EXPECT_EQ(fake.live("imports"), 1);
  ASSERT_TRUE(turnOfOther()) << "the engine is alive";
  EXPECT_EQ(fake.live("imports"), 1) << "the second can't be mapped yet";
  node.engine->cancel(
      *node.group, held, Status(ErrorCode::kTimeout, "long enough"));
  EXPECT_TRUE(eventually([&] { return gpu.idle(); }));
  EXPECT_TRUE(eventually([&] { return fake.live("imports") == 0; }));
  ASSERT_TRUE(turn(2));
  EXPECT_EQ(child.join(), 0);
}

// trim() unmaps the child's memory, and has the child unmap the memory of the
// trimming end.
TEST_F(GpuProcess, TrimGivesBackWhatBothEndsHaveMapped) {
  constexpr int kTurns = 3;
  source = mappedMemory(gpu);
  target = mappedMemory(gpu);
  ChildProcess child("gpu suspended", {folder.path(), std::to_string(kTurns)});
  for (unsigned i = 0; i < kTurns; ++i) {
    ASSERT_TRUE(turn(i)) << i;
    EXPECT_EQ(fake.live("imports"), kPieces);
    node.engine->trim(*node.group);
    EXPECT_EQ(fake.live("imports"), 0);
    ASSERT_TRUE(endsWell(*node.receive(1, kTurn, 1)));
  }
  const auto report = node.engine->report(*node.group).at(0);
  EXPECT_EQ(report.counters.cudaIpcMessages, kTurns);
  EXPECT_EQ(child.join(), 0);
  EXPECT_EQ(log.count("pinned memory"), 0U) << log.all();
}

} // namespace
} // namespace dlslime::testing
