// Messages with memory of GPUs accessed directly by NICs (GPUDirect), on the
// fake driver and the fake fabric.
#include <gtest/gtest.h>

#include "fakes/gpu/gpu_world.h"
#include "fakes/owned_memory.h"
#include "fakes/verbs/sysfs.h"

namespace dlslime::testing {
namespace {

constexpr size_t kPushed = 50 * 4096; // written into the receiver's memory
constexpr size_t kLarge = 3 << 20; // read from the sender's memory
constexpr size_t kSizes[] = {kPushed, kLarge};

class RdmaGpuMessages : public GpuWorld {
 protected:
  // Makes all copies by GPUs fail.
  void refuseCopies() {
    fake.fail("cuMemcpyAsync", cuda::Result::kUnknown, 0, 1000);
    fake.fail("cuMemcpyBatchAsync", cuda::Result::kUnknown, 0, 1000);
  }
  cuda::DevicePointer pointerOf(MemoryView view) {
    return reinterpret_cast<cuda::DevicePointer>(view.data);
  }
  // Sends a message from GPU to GPU, and checks the bytes.
  ::testing::AssertionResult
  passes(MemoryView from, MemoryView to, unsigned seed) {
    const auto bytes = pattern(from.size, seed);
    fake.fill(pointerOf(from), bytes);
    const auto send = one.send(node(0), 1, 5, from);
    const auto receive = other.receive(node(1), 0, 5, to);
    if (auto ended = endsWell(*receive); !ended) {
      return ended;
    }
    if (auto ended = endsWell(*send); !ended) {
      return ended;
    }
    return other.content(to) == bytes
        ? ::testing::AssertionSuccess()
        : ::testing::AssertionFailure() << "wrong";
  }
  int registered() {
    return fabric.live()["dma-buf"];
  }
};

TEST_P(RdmaGpuMessages, NothingIsCopiedBetweenGpus) {
  refuseCopies();
  for (const auto size : kSizes) {
    const auto from = one.memory(size), to = other.memory(size);
    for (unsigned i = 0; i < 5; ++i) {
      ASSERT_TRUE(passes(from, to, i)) << size << " " << i;
    }
  }
  EXPECT_EQ(counters(1).gpuDirectMessages, 10U);
  EXPECT_EQ(counters(1).cudaIpcMessages, 0U);
  EXPECT_EQ(registered(), 4);
  EXPECT_EQ(log.count("GPUDirect"), 0U) << log.all();
}

TEST_P(RdmaGpuMessages, NothingIsCopiedBetweenAGpuAndAProcessor) {
  refuseCopies();
  const auto memory = one.filled(pattern(kLarge)), back = one.memory(kLarge);
  for (unsigned i = 0; i < 4; ++i) {
    const auto send = one.send(node(0), 1, 5, memory);
    const auto receive = node(1).receive(0, 5, kLarge);
    ASSERT_TRUE(endsWell(*receive));
    ASSERT_TRUE(endsWell(*send));
    EXPECT_TRUE(receive->buffer() == pattern(kLarge)) << i;
    const auto returned = one.receive(node(0), 1, 6, back);
    const auto answer = node(1).send(0, 6, pattern(kLarge, i));
    ASSERT_TRUE(endsWell(*returned));
    ASSERT_TRUE(endsWell(*answer));
    EXPECT_TRUE(one.content(back) == pattern(kLarge, i)) << i;
  }
  EXPECT_EQ(counters(0).gpuDirectMessages, 4U);
}

TEST_P(RdmaGpuMessages, AReceiveThatIsPostedFirstIsWrittenFromTheGpu) {
  refuseCopies();
  const auto target = std::make_shared<OwnedMemory>(kPushed);
  for (unsigned i = 0; i < 5; ++i) {
    const auto receive = std::make_shared<OwnedOperation>(
        Operation::Kind::kReceive, 0, 5, target);
    node(1).engine->receive(*node(1).group, receive);
    ASSERT_TRUE(world->passes(1, 0)); // brings the Rtr
    const auto send = one.send(node(0), 1, 5, one.filled(pattern(kPushed, i)));
    ASSERT_TRUE(endsWell(*receive)) << i;
    ASSERT_TRUE(endsWell(*send));
    const Bytes got(target->view().data, target->view().data + kPushed);
    EXPECT_TRUE(got == pattern(kPushed, i)) << i;
  }
  EXPECT_GE(counters(0).pushedMessages, 3U);
}

TEST_P(RdmaGpuMessages, AnAllocationIsRegisteredOnceForAllItsTensors) {
  const auto all = one.memory(10 * kPushed), there = other.memory(10 * kPushed);
  for (size_t i = 0; i < 10; ++i) {
    auto from = all, to = there;
    from.size = to.size = kPushed;
    from.data += i * kPushed;
    to.data += i * kPushed;
    ASSERT_TRUE(passes(from, to, unsigned(i)));
  }
  EXPECT_EQ(registered(), 2);
}

TEST_P(RdmaGpuMessages, AnotherAllocationAtTheSameAddressIsAnother) {
  const std::byte* last = nullptr;
  for (unsigned i = 0; i < 5; ++i) {
    const auto from = one.memory(kLarge), to = other.memory(kLarge);
    EXPECT_TRUE(last == nullptr || last == from.data) << "the fake reuses it";
    last = from.data;
    ASSERT_TRUE(passes(from, to, i)) << i;
    EXPECT_EQ(registered(), 2) << "what was freed is given back";
    fake.free(pointerOf(from));
    fake.free(pointerOf(to));
  }
}

TEST_P(RdmaGpuMessages, WhatIsFreedIsGivenBackWithoutAnotherMessage) {
  const auto from = one.memory(kLarge), to = other.memory(kLarge);
  ASSERT_TRUE(passes(from, to, 1));
  EXPECT_EQ(registered(), 2);
  fake.free(pointerOf(from));
  EXPECT_TRUE(eventually([&] { return registered() == 1; }));
  fake.free(pointerOf(to));
  EXPECT_TRUE(eventually([&] { return registered() == 0; }));
}

TEST_P(RdmaGpuMessages, MappedMemoryIsRegisteredAcrossItsPieces) {
  refuseCopies();
  constexpr size_t kPiece = 1 << 20;
  auto from = one.mapped(kPiece, 5), to = other.mapped(kPiece, 5);
  auto* const base = from.data;
  from.data += 1000;
  to.data += 5000;
  from.size = to.size = kLarge; // four pieces each
  for (unsigned i = 0; i < 5; ++i) {
    ASSERT_TRUE(passes(from, to, i)) << i;
    EXPECT_EQ(registered(), 2) << "what was freed is given back";
    one.remap(base + kPiece * (i % 4), kPiece);
  }
  auto part = from, partThere = to; // a second extent, beside the first
  part.size = partThere.size = kPushed;
  ASSERT_TRUE(passes(part, partThere, 9));
  ASSERT_TRUE(passes(from, to, 10));
  EXPECT_EQ(registered(), 4);
  EXPECT_EQ(counters(1).gpuDirectMessages, 7U);
}

TEST_P(RdmaGpuMessages, TrimmingGivesBackWhatIsIdle) {
  ASSERT_TRUE(passes(one.memory(kLarge), other.memory(kLarge), 1));
  // A done operation may be about to release its registration.
  EXPECT_TRUE(eventually([&] {
    for (int rank = 0; rank < 2; ++rank) {
      node(rank).engine->trim(*node(rank).group);
    }
    return registered() == 0;
  }));
  ASSERT_TRUE(passes(one.memory(kLarge), other.memory(kLarge), 2));
}

TEST_P(RdmaGpuMessages, WhatCantBeRegisteredIsStagedAndSaidOnce) {
  setenv("FAKE_CUDA_DMA_BUF", "0", 1);
  for (unsigned i = 0; i < 3; ++i) {
    ASSERT_TRUE(passes(one.memory(kLarge), other.memory(kLarge), i));
  }
  EXPECT_EQ(counters(1).gpuDirectMessages, 0U);
  EXPECT_EQ(log.count("not by GPUDirect"), 2U) << log.all(); // at each end
  EXPECT_EQ(log.count("nvidia-peermem"), 2U) << log.all();
}

TEST_P(RdmaGpuMessages, OneEndThatCantDoesNotHinderTheOther) {
  ASSERT_TRUE(world->passes(0, 1)); // connects, and registers the rings
  fabric.failRegistrations(EOPNOTSUPP, 1); // at the sender
  const auto from = one.filled(pattern(kLarge));
  const auto send = one.send(node(0), 1, 5, from);
  const auto receive = node(1).receive(0, 5, kLarge);
  ASSERT_TRUE(endsWell(*receive));
  EXPECT_TRUE(receive->buffer() == pattern(kLarge));
  ASSERT_TRUE(endsWell(*send));
  const auto to = other.memory(kLarge);
  const auto direct = other.receive(node(1), 0, 6, to);
  const auto plain = node(0).send(1, 6, pattern(kLarge, 2));
  ASSERT_TRUE(endsWell(*direct));
  ASSERT_TRUE(endsWell(*plain));
  EXPECT_TRUE(other.content(to) == pattern(kLarge, 2));
  EXPECT_EQ(counters(1).gpuDirectMessages, 1U);
}

TEST_P(RdmaGpuMessages, WhatIsUnderWayWhenTheNicDiesGoesOnByTcp) {
  ASSERT_TRUE(world->passes(0, 1));
  fabric.hold("nic1", kPushed);
  const auto reads = fabric.requests("nic1", IBV_WR_RDMA_READ);
  std::vector<GpuOperationPtr> sends, receives;
  std::vector<MemoryView> targets;
  for (unsigned i = 0; i < 6; ++i) {
    const auto size = i % 2 == 0 ? kPushed : kLarge;
    targets.push_back(other.memory(size));
    receives.push_back(other.receive(node(1), 0, i, targets.back()));
    sends.push_back(one.send(node(0), 1, i, one.filled(pattern(size, i))));
  }
  ASSERT_TRUE(eventually(
      [&] { return fabric.requests("nic1", IBV_WR_RDMA_READ) > reads; }));
  fabric.cut("nic1");
  for (size_t i = 0; i < receives.size(); ++i) {
    ASSERT_TRUE(endsWell(*receives[i])) << i;
    ASSERT_TRUE(endsWell(*sends[i])) << i;
    EXPECT_TRUE(
        other.content(targets[i]) == pattern(targets[i].size, unsigned(i)))
        << i;
  }
  const auto report = node(1).engine->report(*node(1).group).at(0);
  EXPECT_EQ(report.route, "tcp");
}

TEST_P(RdmaGpuMessages, PinnedMemoryIsCountedAndGivenBack) {
  fabric.failRegistrations(EOPNOTSUPP); // forces staging
  ASSERT_TRUE(passes(one.memory(kLarge), other.memory(kLarge), 1));
  for (int rank = 0; rank < 2; ++rank) {
    auto& [engine, group] = node(rank);
    EXPECT_TRUE(eventually([&, &engine = engine, &group = group] {
      return engine->memoryUse(*group).idle >= 512 * 1024;
    })) << rank;
    const auto pinned = fake.live("pinned");
    engine->trim(*group);
    EXPECT_LT(fake.live("pinned"), pinned) << rank;
    EXPECT_EQ(engine->memoryUse(*group).idle, 0U) << rank;
  }
  ASSERT_TRUE(passes(one.memory(kLarge), other.memory(kLarge), 2));
}

TEST(RdmaGpuNics, GpuDirectCanBeSwitchedOff) {
  LogCapture log;
  AuditedFabric fabric{{nicOf(0), nicOf(1)}};
  FakeGpu fake;
  GpuSide one(fake, 0), other(fake, 1);
  Cluster world(2, [&](int rank) {
    auto config = rdmaHost(rank);
    config.rdma.gpuDirect = false;
    return config;
  });
  const auto bytes = pattern(kLarge);
  const auto target = other.memory(kLarge);
  const auto receive = other.receive(world[1], 0, 5, target);
  const auto send = one.send(world[0], 1, 5, one.filled(bytes));
  ASSERT_TRUE(eventually([&] { return receive->done() && send->done(); }));
  EXPECT_TRUE(other.content(target) == bytes);
  EXPECT_EQ(fabric.live()["dma-buf"], 0);
  EXPECT_GE(log.count("DLSLIME_GPUDIRECT=off"), 1U) << log.all();
}

// Only the fake driver's GPU 0 is in use, at 0000:10:00.0.
TEST(RdmaGpuNics, ThoseNearestToTheProcesssGpuAreTaken) {
  const Sysfs sysfs(R"(
pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0 0 far
pci0000:0f/0000:0f:01.0/0000:0e:00.0/0000:0d:00.0/0000:10:00.0 0
pci0000:0f/0000:0f:01.0/0000:0e:00.0/0000:0d:01.0/0000:11:00.0 0 near
)");
  auto devices = sysfs.nics();
  devices.push_back(nicOf(1));
  const AuditedFabric fabric{devices};
  FakeGpu fake;
  GpuSide gpu(fake, 0);
  Cluster world(2, [&](int rank) {
    auto config = rdmaHost(rank);
    config.rdma.nics = rank == 0 ? "far,near" : nicOf(1).name;
    config.rdma.sysfs = rank == 0 ? sysfs.root() : "/none";
    return config;
  });
  ASSERT_TRUE(world.passes(0, 1));
  const auto report = world[0].engine->report(*world[0].group).at(0);
  EXPECT_EQ(report.devices, "near:1");
}

INSTANTIATE_TEST_SUITE_P(
    Ways,
    RdmaGpuMessages,
    ::testing::Values(kRdmaWay),
    nameOfWay);

} // namespace
} // namespace dlslime::testing
