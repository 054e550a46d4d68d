// Sends and receives on memory of GPUs between engines, on the fake driver,
// over every route of the machine.
#include <gtest/gtest.h>

#include "fakes/gpu/gpu_world.h"

namespace dlslime::testing {
namespace {

constexpr milliseconds kMoment{30};

class EngineGpu : public GpuWorld {};

// Ways on which bytes between a GPU and a processor are staged.
class StagedGpu : public GpuWorld {};

const size_t kSizes[] = {1, 4096, 65536, 65537, 3'000'001};

TEST_P(EngineGpu, BytesGoFromGpuToGpu) {
  for (const auto size : kSizes) {
    const auto bytes = pattern(size);
    const auto there = other.memory(size);
    const auto send = one.send(node(0), 1, 5, one.filled(bytes));
    const auto receive = other.receive(node(1), 0, 5, there);
    ASSERT_TRUE(endsWell(*receive)) << receive->status().message();
    ASSERT_TRUE(endsWell(*send)) << send->status().message();
    EXPECT_EQ(receive->bytes(), size);
    EXPECT_EQ(other.content(there), bytes) << size;
    EXPECT_TRUE(eventually([&] { return send->released(); }));
    EXPECT_TRUE(eventually([&] { return receive->released(); }));
  }
}

TEST_P(EngineGpu, BytesGoFromGpuToProcessorAndBack) {
  for (const auto size : kSizes) {
    const auto bytes = pattern(size);
    const auto send = one.send(node(0), 1, 5, one.filled(bytes));
    const auto receive = node(1).receive(0, 5, size);
    ASSERT_TRUE(endsWell(*receive)) << receive->status().message();
    ASSERT_TRUE(endsWell(*send));
    EXPECT_EQ(receive->buffer(), bytes) << size;
    const auto back = one.memory(size);
    const auto returned = one.receive(node(0), 1, 6, back);
    const auto answer = node(1).send(0, 6, bytes);
    ASSERT_TRUE(endsWell(*returned)) << returned->status().message();
    ASSERT_TRUE(endsWell(*answer));
    EXPECT_EQ(one.content(back), bytes) << size;
  }
}

TEST_P(EngineGpu, WhatComesBeforeItsReceiveIsKept) {
  for (const auto size : kSizes) {
    const auto bytes = pattern(size);
    const auto send = one.send(node(0), 1, 5, one.filled(bytes));
    const auto after = node(0).send(1, 7, Bytes(1));
    ASSERT_TRUE(endsWell(*node(1).receive(0, 7, 1)));
    const auto there = other.memory(size);
    const auto receive = other.receive(node(1), 0, 5, there);
    ASSERT_TRUE(endsWell(*receive));
    ASSERT_TRUE(endsWell(*send));
    EXPECT_EQ(other.content(there), bytes) << size;
  }
}

TEST_P(EngineGpu, ASendBeginsWhenItsStreamComesThere) {
  for (const auto size : kSizes) {
    const auto bytes = pattern(size);
    const auto source = one.filled(bytes), target = one.memory(size);
    one.pause();
    one.copy(target, source); // the stream makes the message
    const auto send = one.send(node(0), 1, 5, target);
    const auto receive = node(1).receive(0, 5, size);
    std::this_thread::sleep_for(kMoment);
    EXPECT_FALSE(receive->done());
    EXPECT_FALSE(send->done());
    one.go();
    ASSERT_TRUE(endsWell(*receive));
    ASSERT_TRUE(endsWell(*send));
    EXPECT_EQ(receive->buffer(), bytes) << size;
  }
}

TEST_P(EngineGpu, AReceiveWritesWhenItsStreamComesThere) {
  for (const auto size : kSizes) {
    const auto bytes = pattern(size), before = pattern(size, 9);
    const auto target = other.filled(before), kept = other.memory(size);
    other.pause();
    other.copy(kept, target); // reads the earlier bytes
    const auto receive = other.receive(node(1), 0, 5, target);
    const auto send = node(0).send(1, 5, bytes);
    std::this_thread::sleep_for(kMoment);
    EXPECT_FALSE(receive->done());
    EXPECT_EQ(other.content(target), before);
    other.go();
    ASSERT_TRUE(endsWell(*receive));
    ASSERT_TRUE(endsWell(*send));
    EXPECT_EQ(other.content(target), bytes) << size;
    EXPECT_EQ(other.content(kept), before) << size;
  }
}

TEST_P(EngineGpu, OneTagStaysInOrderAndOthersPass) {
  one.pause();
  const auto first = one.send(node(0), 1, 5, one.filled(pattern(100, 1)));
  const auto second = node(0).send(1, 5, pattern(100, 2));
  const auto passes = node(0).send(1, 6, pattern(100, 3));
  const auto early = node(1).receive(0, 5, 100);
  const auto late = node(1).receive(0, 5, 100);
  const auto beside = node(1).receive(0, 6, 100);
  ASSERT_TRUE(endsWell(*beside));
  ASSERT_TRUE(endsWell(*passes));
  EXPECT_FALSE(early->done());
  EXPECT_FALSE(second->done());
  one.go();
  ASSERT_TRUE(endsWell(*late));
  ASSERT_TRUE(endsWell(*early));
  EXPECT_EQ(early->buffer(), pattern(100, 1));
  EXPECT_EQ(late->buffer(), pattern(100, 2));
}

TEST_P(EngineGpu, ReceivesOfOneTagAreMatchedInOrder) {
  const auto slow = other.memory(100);
  other.pause();
  const auto first = other.receive(node(1), 0, 5, slow);
  const auto second = node(1).receive(Operation::kAnySource, 5, 100);
  const auto a = node(0).send(1, 5, pattern(100, 1));
  const auto b = node(0).send(1, 5, pattern(100, 2));
  std::this_thread::sleep_for(kMoment);
  EXPECT_FALSE(second->done());
  other.go();
  ASSERT_TRUE(endsWell(*first));
  ASSERT_TRUE(endsWell(*second));
  EXPECT_EQ(other.content(slow), pattern(100, 1));
  EXPECT_EQ(second->buffer(), pattern(100, 2));
}

TEST_P(EngineGpu, AStreamGoesOnWhenTheMessageIsThere) {
  for (const auto size : kSizes) {
    const auto bytes = pattern(size);
    const auto target = other.memory(size), read = other.memory(size);
    const auto receive = other.receive(node(1), 0, 5, target);
    ASSERT_TRUE(node(1).engine->blockStream(other.place(), *receive));
    other.copy(read, target);
    std::this_thread::sleep_for(kMoment);
    EXPECT_FALSE(other.idle());
    const auto send = one.send(node(0), 1, 5, one.filled(bytes));
    ASSERT_TRUE(eventually([&] { return other.idle(); }));
    EXPECT_TRUE(receive->status().ok());
    EXPECT_EQ(other.content(read), bytes) << size;
    ASSERT_TRUE(endsWell(*send));
  }
}

TEST_P(EngineGpu, AStreamIsLetGoWhenItsMessageFails) {
  const auto receive = other.receive(node(1), 0, 5, other.memory(100));
  ASSERT_TRUE(node(1).engine->blockStream(other.place(), *receive));
  // Connects the pair, so that rank 1 learns of the end.
  node(0).send(1, 6, Bytes(1));
  ASSERT_TRUE(endsWell(*node(1).receive(0, 6, 1)));
  EXPECT_FALSE(other.idle());
  world->stop(0);
  ASSERT_TRUE(ends(*receive));
  EXPECT_FALSE(receive->status().ok());
  EXPECT_TRUE(eventually([&] { return other.idle(); }));
}

TEST_P(EngineGpu, AHeldSendThatIsCancelledKeepsItsMemoryUntilItsStreamComes) {
  one.pause();
  const auto send = one.send(node(0), 1, 5, one.filled(pattern(100)));
  const auto next = node(0).send(1, 5, pattern(100, 2));
  node(0).engine->cancel(
      *node(0).group, send, Status(ErrorCode::kTimeout, "too late"));
  ASSERT_TRUE(ends(*send));
  EXPECT_EQ(send->status().code(), ErrorCode::kTimeout);
  EXPECT_FALSE(send->released());
  const auto receive = node(1).receive(0, 5, 100);
  ASSERT_TRUE(endsWell(*receive)) << "the next one is not held back any more";
  EXPECT_EQ(receive->buffer(), pattern(100, 2));
  EXPECT_FALSE(send->released());
  one.go();
  EXPECT_TRUE(eventually([&] { return send->released(); }));
}

TEST_P(EngineGpu, AbortEndsWhatIsHeld) {
  one.pause();
  const auto send = one.send(node(0), 1, 5, one.filled(pattern(100)));
  const auto receive = one.receive(node(0), 1, 5, one.memory(100));
  const auto behind = node(0).send(1, 5, pattern(100, 2));
  EXPECT_NE(
      node(0).engine->describePending(*node(0).group, 8).find(send->describe()),
      std::string::npos);
  node(0).engine->abort(
      *node(0).group, Status(ErrorCode::kCancelled, "no more"));
  for (const Operation* const operation :
       {static_cast<Operation*>(send.get()),
        static_cast<Operation*>(receive.get()),
        static_cast<Operation*>(behind.get())}) {
    ASSERT_TRUE(operation->done());
    EXPECT_EQ(operation->status().code(), ErrorCode::kCancelled);
  }
  one.go(); // pinned memory can be freed only when all streams are idle
}

TEST_P(EngineGpu, GroupsHoldBackEachTheirOwn) {
  auto mine = world->join(0, "second"), theirs = world->join(1, "second");
  one.pause();
  const auto held = one.send(node(0), 1, 5, one.filled(pattern(100, 1)));
  EXPECT_NE(
      node(0).engine->describeLink(*node(0).group, *held).find("not begun"),
      std::string::npos);
  GpuSide beside(fake, 0);
  Node second{node(0).engine, mine}, far{node(1).engine, theirs};
  const auto quick = beside.send(second, 1, 5, beside.filled(pattern(100, 2)));
  const auto first = far.receive(0, 5, 100);
  ASSERT_TRUE(endsWell(*first));
  EXPECT_EQ(first->buffer(), pattern(100, 2));
  ASSERT_TRUE(endsWell(*quick));
  one.go();
  const auto last = node(1).receive(0, 5, 100);
  ASSERT_TRUE(endsWell(*last)) << "a thread still looks";
  EXPECT_EQ(last->buffer(), pattern(100, 1));
}

TEST_P(EngineGpu, WhatIsHeldWhenItsGroupEndsKeepsItsMemoryUntilItsStreamComes) {
  one.pause();
  auto mine = world->join(0, "second");
  Node second{node(0).engine, mine};
  const auto receive = one.receive(second, 1, 5, one.memory(100));
  second = {};
  world->leave(0, mine);
  ASSERT_TRUE(receive->done());
  EXPECT_FALSE(receive->released());
  one.go();
  EXPECT_TRUE(eventually([&] { return receive->released(); }));
}

TEST_P(EngineGpu, WhatIsPostedToAClosedGroupKeepsItsMemoryAsWell) {
  node(0).engine->abort(
      *node(0).group, Status(ErrorCode::kCancelled, "no more"));
  one.pause();
  const auto send = one.send(node(0), 1, 5, one.filled(pattern(100)));
  ASSERT_TRUE(send->done());
  EXPECT_EQ(send->status().code(), ErrorCode::kCancelled);
  EXPECT_FALSE(send->released());
  one.go();
  EXPECT_TRUE(eventually([&] { return send->released(); }));
}

// A caller that looks only once may begin a copy; a different thread must end
// the copy.
TEST_P(EngineGpu, ALookThatBeginsACopyLeavesItToOthers) {
  const auto target = other.memory(100);
  const auto receive = other.receive(node(1), 0, 5, target);
  node(0).send(1, 5, pattern(100));
  for (int i = 0; i < 1000 && !receive->done(); ++i) {
    node(1).engine->poke();
  }
  ASSERT_TRUE(endsWell(*receive));
  EXPECT_EQ(other.content(target), pattern(100));
}

TEST_P(EngineGpu, ALongMessageFailsAtBothEndsWithBothSizes) {
  for (const size_t size : {200U, 200'000U}) {
    const auto target = other.filled(pattern(100, 4));
    const auto receive = other.receive(node(1), 0, 5, target);
    const auto send = one.send(node(0), 1, 5, one.filled(pattern(size)));
    ASSERT_TRUE(ends(*receive));
    EXPECT_EQ(receive->status().code(), ErrorCode::kTruncated);
    EXPECT_EQ(other.content(target), pattern(100, 4));
    EXPECT_TRUE(eventually([&] {
      return send->done() && send->status().code() == ErrorCode::kTruncated;
    }));
  }
}

TEST_P(StagedGpu, WhatAGpuCantCopyFailsAtBothEnds) {
  const size_t size = 3'000'000;
  const auto source = one.filled(pattern(size));
  const auto receive = node(1).receive(0, 5, size);
  fake.fail("copy", cuda::Result::kIllegalAddress, 2);
  const auto send = one.send(node(0), 1, 5, source);
  ASSERT_TRUE(ends(*send));
  ASSERT_TRUE(ends(*receive));
  EXPECT_NE(
      send->status().message().find("copying by the stream of a GPU failed"),
      std::string::npos)
      << send->status().message();
  EXPECT_NE(
      receive->status().message().find("could not read what it sent"),
      std::string::npos)
      << receive->status().message();
  const auto after = node(1).receive(0, 6, 10); // the pair still works
  node(0).send(1, 6, pattern(10));
  EXPECT_TRUE(endsWell(*after));
}

TEST_P(EngineGpu, AStreamThatFailsFailsWhatItHolds) {
  const auto source = one.filled(pattern(100));
  one.pause();
  fake.fail("copy", cuda::Result::kIllegalAddress);
  one.copy(one.memory(100), source);
  const auto send = one.send(node(0), 1, 5, source);
  one.go();
  ASSERT_TRUE(ends(*send));
  EXPECT_NE(
      send->status().message().find("failed before it began"),
      std::string::npos)
      << send->status().message();
}

TEST_P(EngineGpu, AStreamThatIsCapturedIsRefused) {
  fake.capture(one.stream());
  EXPECT_THROW(one.send(node(0), 1, 5, one.memory(100)), Error);
  fake.capture(nullptr);
  const auto receive = node(1).receive(0, 5, 100);
  const auto send = one.send(node(0), 1, 5, one.filled(pattern(100)));
  EXPECT_TRUE(endsWell(*receive)); // nothing of the first send was queued
  EXPECT_EQ(receive->buffer(), pattern(100));
}

TEST_P(EngineGpu, ThousandsInFlight) {
  constexpr int kMany = 2000;
  const auto all = one.filled(pattern(kMany * 16));
  const auto there = other.memory(kMany * 16);
  const auto part = [](MemoryView whole, int i) {
    return MemoryView{whole.data + i * 16, 16, nullptr, whole.device};
  };
  std::vector<GpuOperationPtr> operations;
  for (int i = 0; i < kMany; ++i) {
    operations.push_back(other.receive(node(1), 0, 5, part(there, i)));
    operations.push_back(one.send(node(0), 1, 5, part(all, i)));
  }
  for (const auto& operation : operations) {
    ASSERT_TRUE(endsWell(*operation)) << operation->status().message();
  }
  EXPECT_EQ(other.content(there), pattern(kMany * 16));
}

INSTANTIATE_TEST_SUITE_P(
    Ways,
    EngineGpu,
    ::testing::ValuesIn(kGpuWays),
    nameOfWay);
INSTANTIATE_TEST_SUITE_P(
    Ways,
    StagedGpu,
    ::testing::ValuesIn(kGpuWays, std::end(kGpuWays) - 1),
    nameOfWay);

} // namespace
} // namespace dlslime::testing
