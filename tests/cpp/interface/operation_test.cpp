#include "interface/operation.h"

#include <gtest/gtest.h>

#include <list>
#include <random>
#include <thread>

#include "engine/progress/completions.h"
#include "fakes/guarded_operation.h"
#include "fakes/world.h"

namespace dlslime::testing {
namespace {

OperationPtr some(uint32_t tag = 0) {
  return GuardedOperation::receive(0, tag, 0);
}

TEST(OperationTest, DescribesItself) {
  EXPECT_EQ(
      makeSend(3, 7, pattern(10))->describe(),
      "send to rank 3 tag 7 (10 bytes)");
  EXPECT_EQ(
      makeReceive(1, 7, 4096)->describe(),
      "recv from rank 1 tag 7 (4096 bytes)");
  EXPECT_EQ(
      makeReceive(Operation::kAnySource, 0, 1)->describe(),
      "recv from any source tag 0 (1 bytes)");
}

TEST(OperationTest, CallbackRunsOnceWhenItEnds) {
  const auto operation = some();
  int calls = 0;
  operation->onDone([&] { ++calls; });
  operation->settle({});
  EXPECT_EQ(calls, 0);
  operation->runCallbacks();
  operation->runCallbacks();
  EXPECT_EQ(calls, 1);
}

struct CountedHold final : Accelerator::StreamBlock {
  void release() override {
    ++released;
  }
  int released = 0;
};

// settle() releases the streams: the settling thread may block in the driver
// before the callbacks.
TEST(OperationTest, StreamsAreLetGoOnceWhenItIsDone) {
  const auto operation = some();
  const auto early = std::make_shared<CountedHold>();
  const auto late = std::make_shared<CountedHold>();
  operation->letGoWhenDone(early);
  EXPECT_EQ(early->released, 0);
  operation->settle({});
  EXPECT_EQ(early->released, 1);
  operation->letGoWhenDone(late);
  operation->runCallbacks();
  EXPECT_EQ(early->released, 1);
  EXPECT_EQ(late->released, 1);
}

TEST(OperationTest, IsDecidedOnceItHasFailedOrEnded) {
  const auto failed = some(), ended = some();
  EXPECT_FALSE(failed->decided());
  failed->failLate({ErrorCode::kTimeout, "late"});
  EXPECT_TRUE(failed->decided());
  EXPECT_FALSE(failed->done());
  EXPECT_EQ(failed->status().code(), ErrorCode::kTimeout);
  ended->settle({});
  EXPECT_TRUE(ended->decided());
}

TEST(OperationTest, AFailureOutsideOfItCountsHoweverItEndsAndOnce) {
  const auto before = some(), after = some();
  before->failLate({ErrorCode::kTimeout, "first"});
  for (const auto& operation : {before, after}) {
    operation->settle({});
    EXPECT_TRUE(operation->done());
  }
  EXPECT_TRUE(after->status().ok());
  std::thread other([&] { after->failLate({ErrorCode::kTimeout, "first"}); });
  other.join();
  for (const auto& operation : {before, after}) {
    const auto& told = operation->status();
    operation->failLate({ErrorCode::kPeerFailed, "second"});
    EXPECT_EQ(told.message(), "first");
    EXPECT_EQ(operation->status().code(), ErrorCode::kTimeout);
  }
}

TEST(OperationTest, CallbackAddedAfterTheEndRunsAtOnce) {
  const auto operation = some();
  operation->settle({});
  operation->runCallbacks();
  int calls = 0;
  operation->onDone([&] { ++calls; });
  EXPECT_EQ(calls, 1);
}

TEST(OperationTest, CallbackMayAddACallback) {
  const auto operation = some();
  int calls = 0;
  operation->onDone([&] { operation->onDone([&] { ++calls; }); });
  operation->settle({});
  operation->runCallbacks();
  EXPECT_EQ(calls, 1);
}

TEST(OperationTest, CallbacksOfTwoThreadsAllRunOnce) {
  for (int round = 0; round < 200; ++round) {
    const auto operation = some();
    std::atomic<int> calls{0};
    std::thread adder([&] {
      for (int i = 0; i < 20; ++i) {
        operation->onDone([&] { ++calls; });
      }
    });
    operation->settle({});
    operation->runCallbacks();
    adder.join();
    EXPECT_EQ(calls, 20);
  }
}

TEST(CompletionsTest, FinishEndsOnceAndReleasesOnce) {
  Completions completions;
  const auto operation = GuardedOperation::send(0, 0, pattern(10));
  completions.finish(operation, Status(ErrorCode::kTimeout, "first"));
  completions.finish(operation, Status(ErrorCode::kCancelled, "second"));
  completions.take().tell();
  EXPECT_EQ(operation->ends(), 1);
  EXPECT_EQ(operation->releases(), 1);
  EXPECT_EQ(operation->status().message(), "first");
  EXPECT_TRUE(completions.empty());
}

TEST(CompletionsTest, EarlyEndKeepsTheMemoryUntilTheSecondHalf) {
  Completions completions;
  const auto operation = GuardedOperation::send(0, 0, pattern(10));
  completions.finishEarly(operation, Status(ErrorCode::kTimeout, "early"));
  completions.finishEarly(operation, Status(ErrorCode::kTimeout, "again"));
  completions.take().tell();
  EXPECT_EQ(operation->ends(), 1);
  EXPECT_EQ(operation->releases(), 0);
  EXPECT_TRUE(operation->done());
  completions.finish(operation, {});
  completions.finish(operation, {});
  completions.take().tell();
  EXPECT_EQ(operation->ends(), 1);
  EXPECT_EQ(operation->releases(), 1);
  EXPECT_EQ(operation->status().message(), "early");
}

// Destroying a long chain must not recurse.
TEST(CompletionsTest, ManyThatAreNeverToldAreDroppedOneByOne) {
  Completions completions;
  for (int i = 0; i < 200000; ++i) {
    completions.finish(GuardedOperation::send(0, 0, {}), {});
  }
  EXPECT_FALSE(completions.empty());
}

// Else a second keeper's letMemoryGo() could free the memory under the first
// keeper.
TEST(OperationTest, MemoryIsKeptByOneAtATime) {
  const auto operation = some();
  EXPECT_TRUE(operation->keepMemory());
  EXPECT_FALSE(operation->keepMemory());
  operation->letMemoryGo();
  EXPECT_TRUE(operation->keepMemory());
}

TEST(OperationQueueTest, FirstInIsFirstOut) {
  OperationQueue queue;
  std::vector<OperationPtr> all;
  for (int i = 0; i < 10; ++i) {
    all.push_back(some());
    queue.push(all.back());
  }
  for (const auto& operation : all) {
    EXPECT_EQ(queue.front(), operation);
    EXPECT_EQ(queue.pop(), operation);
  }
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(queue.pop(), nullptr);
}

TEST(OperationQueueTest, RemoveTakesFromAnyPlace) {
  for (size_t victim = 0; victim < 5; ++victim) {
    OperationQueue queue;
    std::vector<OperationPtr> all;
    for (int i = 0; i < 5; ++i) {
      all.push_back(some());
      queue.push(all.back());
    }
    EXPECT_TRUE(queue.remove(all[victim].get()));
    EXPECT_FALSE(queue.remove(all[victim].get()));
    const auto last = some(); // checks the tail after a removal
    queue.push(last);
    all.erase(all.begin() + static_cast<long>(victim));
    all.push_back(last);
    for (const auto& operation : all) {
      EXPECT_EQ(queue.pop(), operation);
    }
    EXPECT_TRUE(queue.empty());
  }
}

TEST(OperationQueueTest, QueueIsUsableAfterItsOnlyEntryWasRemoved) {
  OperationQueue queue;
  const auto first = some();
  queue.push(first);
  EXPECT_TRUE(queue.remove(first.get()));
  EXPECT_TRUE(queue.empty());
  queue.push(first);
  EXPECT_EQ(queue.pop(), first);
}

TEST(OperationQueueTest, MovedFromQueueIsEmptyAndUsable) {
  OperationQueue first;
  const auto operation = some();
  first.push(operation);
  OperationQueue second = std::move(first);
  EXPECT_TRUE(first.empty()); // NOLINT: what is tested
  EXPECT_EQ(second.pop(), operation);
  first.push(operation);
  EXPECT_EQ(first.pop(), operation);
}

TEST(OperationQueueTest, LongChainIsDestroyedWithoutRecursion) {
  OperationQueue queue;
  for (int i = 0; i < 500000; ++i) {
    queue.push(std::make_shared<Operation>(
        Operation::Kind::kSend, 0, 0, MemoryView{}));
  }
}

TEST(OperationQueueTest, ForEachVisitsAllInOrder) {
  OperationQueue queue;
  std::vector<OperationPtr> all;
  for (int i = 0; i < 4; ++i) {
    all.push_back(some());
    queue.push(all.back());
  }
  std::vector<OperationPtr> seen;
  queue.forEach([&](const OperationPtr& each) { seen.push_back(each); });
  EXPECT_EQ(seen, all);
}

TEST(OperationQueueTest, RandomUseAgreesWithAList) {
  std::mt19937 random(2);
  OperationQueue queue;
  std::list<OperationPtr> model;
  for (int step = 0; step < 20000; ++step) {
    switch (random() % 3) {
      case 0:
        model.push_back(some());
        queue.push(model.back());
        break;
      case 1:
        EXPECT_EQ(queue.pop(), model.empty() ? nullptr : model.front());
        if (!model.empty()) {
          model.pop_front();
        }
        break;
      default: {
        auto victim = model.begin();
        std::advance(victim, model.empty() ? 0 : random() % model.size());
        if (victim != model.end()) {
          EXPECT_TRUE(queue.remove(victim->get()));
          model.erase(victim);
        }
        EXPECT_FALSE(queue.remove(some().get()));
      }
    }
    EXPECT_EQ(queue.empty(), model.empty());
  }
}

} // namespace
} // namespace dlslime::testing
