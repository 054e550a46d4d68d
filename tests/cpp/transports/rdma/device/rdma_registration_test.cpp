// Registrations kept for the next use of the memory.
#include <gtest/gtest.h>

#include <cerrno>
#include <thread>

#include "fakes/owned_memory.h"
#include "fakes/verbs/fake_verbs.h"
#include "transports/rdma/device/nic.h"

namespace dlslime::rdma {
namespace {

using dlslime::testing::FakeFabric;
using Memory = dlslime::testing::OwnedMemory;

constexpr size_t kSmall = 64 * 1024;
constexpr size_t kLarge = 8 * 1024 * 1024;

class RegistrationTest : public ::testing::Test {
 protected:
  void open(size_t bytes, size_t entries = 100) {
    domain_ = openNics(FakeFabric::verbs(), {}).nics.front()->domain();
    cache = std::make_shared<RegistrationCache>(
        domain_, RegistrationCache::Limits{bytes, entries});
  }
  int regions() {
    return fabric.live()["mr"];
  }

  FakeFabric fabric;
  std::shared_ptr<RegistrationCache> cache;

 private:
  ProtectionDomainPtr domain_;
};

TEST_F(RegistrationTest, NextUseFindsWhatTheFirstRegistered) {
  open(SIZE_MAX);
  Memory memory(kLarge);
  EXPECT_EQ(cache->find(memory.view()), nullptr);
  const auto region = cache->acquire(memory.view());
  EXPECT_EQ(cache->acquire(memory.view()), region);
  EXPECT_EQ(cache->find(memory.view(100, 5000)), region) << "a part of it";
  EXPECT_EQ(cache->find({memory.allocation().data, 8}), nullptr)
      << "a view without an owner";
  EXPECT_EQ(regions(), 1);
}

TEST_F(RegistrationTest, MemoryWhoseEndIsNotToldIsRegisteredWhileItIsHeld) {
  open(SIZE_MAX);
  Memory memory(kLarge, false);
  EXPECT_EQ(cache->prepare(memory.view(0, kSmall)), nullptr) << "is copied";
  auto prepared = cache->prepare(memory.view());
  ASSERT_NE(prepared, nullptr) << "by the sending thread, before any lock";
  EXPECT_NE(cache->find(memory.view(100, 5000)), nullptr);
  auto other = cache->prepare(memory.view(0, kSmall)); // a second operation
  EXPECT_EQ(regions(), 1);
  prepared.reset();
  EXPECT_NE(cache->find(memory.view(0, kSmall)), nullptr);
  EXPECT_EQ(cache->find(memory.view()), nullptr)
      << "the whole has no user left";
  other.reset();
  EXPECT_EQ(regions(), 0);
  EXPECT_EQ(cache->find(memory.view(0, kSmall)), nullptr);
  EXPECT_EQ(cache->entries(), 0U);
}

// A broken connection may hold regions for longer than any operation lives.
TEST_F(RegistrationTest, WhatOnlyAConnectionHoldsIsNotFoundByTheAddress) {
  open(SIZE_MAX);
  Memory memory(kLarge, false);
  auto prepared = cache->prepare(memory.view());
  const auto byConnection = cache->acquire(memory.view());
  EXPECT_EQ(regions(), 1);
  prepared.reset(); // the memory may be freed, and its address be used again
  EXPECT_EQ(cache->find(memory.view()), nullptr);
  EXPECT_NE(cache->acquire(memory.view()), byConnection);
  const auto next = cache->prepare(memory.view());
  EXPECT_EQ(regions(), 2);
}

TEST_F(RegistrationTest, TrimDropsWhatIsNotInUse) {
  open(SIZE_MAX);
  Memory used(kLarge), idle(kLarge);
  const auto region = cache->acquire(used.view());
  cache->acquire(idle.view());
  EXPECT_EQ(cache->bytes(), 2 * kLarge);
  cache->trim();
  EXPECT_EQ(cache->bytes(), kLarge);
  EXPECT_EQ(cache->find(used.view()), region);
  EXPECT_EQ(cache->find(idle.view()), nullptr);
  EXPECT_EQ(regions(), 1);
}

TEST_F(RegistrationTest, SmallAllocationsAreRegisteredWholeLargeOnesInParts) {
  open(SIZE_MAX);
  Memory small(1 << 20), large(kLarge);
  const auto part = cache->acquire(small.view(4096, 200000));
  EXPECT_EQ(cache->find(small.view()), part);
  cache->acquire(large.view(1 << 20, 1 << 20));
  EXPECT_NE(cache->find(large.view((1 << 20) + 1, 1000)), nullptr);
  EXPECT_EQ(cache->find(large.view(0, 1000)), nullptr);
  EXPECT_EQ(cache->find(large.view(2 << 20, 1)), nullptr);
  EXPECT_EQ(cache->find(large.view((2 << 20) - 1, 2)), nullptr);
}

TEST_F(RegistrationTest, LongerViewFromTheSameAddressReplacesTheShorter) {
  open(SIZE_MAX);
  Memory memory(kLarge);
  cache->acquire(memory.view(0, kLarge / 2));
  const auto longer = cache->acquire(memory.view());
  EXPECT_EQ(cache->find(memory.view(0, 10)), longer);
  EXPECT_EQ(cache->entries(), 1U);
  EXPECT_EQ(regions(), 1);
}

TEST_F(RegistrationTest, FreedOrReplacedMemoryIsForgottenBefore) {
  open(SIZE_MAX);
  auto memory = std::make_unique<Memory>(kLarge);
  cache->acquire(memory->view(0, kLarge / 4));
  cache->acquire(memory->view(kLarge / 2, kLarge / 4));
  EXPECT_EQ(memory->callbacks(), 1U) << "once per allocation";
  memory->replace(kLarge);
  EXPECT_EQ(cache->entries(), 0U);
  EXPECT_EQ(regions(), 0);
  cache->acquire(memory->view());
  EXPECT_EQ(memory->callbacks(), 1U);
  memory.reset();
  EXPECT_EQ(regions(), 0);
}

TEST_F(RegistrationTest, RegionInUseOutlivesItsPlaceInTheCache) {
  open(SIZE_MAX);
  Memory memory(kLarge);
  auto region = cache->acquire(memory.view());
  memory.replace(0);
  EXPECT_EQ(cache->entries(), 0U);
  EXPECT_EQ(regions(), 1);
  region.reset();
  EXPECT_EQ(regions(), 0);
}

TEST_F(RegistrationTest, MemoryWithoutAnOwnerIsRegisteredEachTime) {
  open(SIZE_MAX);
  Memory memory(kLarge);
  MemoryView bare = memory.view();
  bare.owner = nullptr;
  EXPECT_NE(cache->acquire(bare), cache->acquire(bare));
  EXPECT_EQ(cache->prepare(bare), nullptr) << "it would not be found";
  EXPECT_EQ(cache->entries(), 0U);
  EXPECT_EQ(regions(), 0);
}

TEST_F(RegistrationTest, NothingIsKeptWhereTheCacheIsOff) {
  open(0, 0);
  Memory memory(kLarge);
  EXPECT_NE(cache->acquire(memory.view()), nullptr);
  EXPECT_EQ(memory.callbacks(), 0U);
  EXPECT_EQ(regions(), 0);
}

TEST_F(RegistrationTest, LeastRecentlyUsedGoesFirstAndThoseInUseStay) {
  open(3 * kLarge);
  Memory one(kLarge), two(kLarge), three(kLarge), four(kLarge), five(kLarge);
  const auto used = cache->acquire(one.view());
  cache->acquire(two.view());
  cache->acquire(three.view());
  EXPECT_NE(cache->find(two.view()), nullptr); // used more recently than three
  cache->acquire(four.view());
  EXPECT_EQ(cache->find(one.view()), used);
  EXPECT_NE(cache->find(two.view()), nullptr);
  EXPECT_EQ(cache->find(three.view()), nullptr);
  EXPECT_EQ(regions(), 3);
}

TEST_F(RegistrationTest, NumberOfEntriesIsBounded) {
  open(SIZE_MAX, 4);
  Memory memory(20 * kLarge);
  for (size_t i = 0; i < 20; ++i) {
    cache->acquire(memory.view(i * kLarge, kLarge));
  }
  EXPECT_EQ(cache->entries(), 4U);
  EXPECT_EQ(regions(), 4);
  EXPECT_NE(cache->find(memory.view(19 * kLarge, 1)), nullptr);
}

TEST_F(RegistrationTest, SmallMessagesAreRegisteredWhenTheirMemoryIsMetAgain) {
  open(SIZE_MAX);
  Memory memory(kSmall);
  EXPECT_EQ(cache->prepare(memory.view()), nullptr);
  EXPECT_EQ(regions(), 0);
  EXPECT_NE(cache->prepare(memory.view()), nullptr);
  EXPECT_EQ(regions(), 1);
  memory.replace(kSmall);
  EXPECT_EQ(cache->prepare(memory.view()), nullptr) << "other memory";
  Memory large(kLarge);
  EXPECT_NE(cache->prepare(large.view()), nullptr);
}

TEST_F(RegistrationTest, WhatIsKeptMakesRoomForWhatIsNeeded) {
  open(SIZE_MAX);
  Memory kept(kLarge), needed(kLarge);
  cache->acquire(kept.view());
  fabric.failRegistrations(ENOMEM, 1);
  EXPECT_NE(cache->acquire(needed.view()), nullptr);
  EXPECT_EQ(cache->find(kept.view()), nullptr);
  fabric.failRegistrations(ENOMEM);
  EXPECT_THROW(cache->acquire(kept.view()), Error);
  EXPECT_EQ(cache->prepare(kept.view()), nullptr);
}

TEST_F(RegistrationTest, ThreadsThatMeetTheSameMemoryShareOneRegion) {
  open(SIZE_MAX);
  for (int round = 0; round < 20; ++round) {
    Memory memory(kLarge);
    std::vector<MemoryRegionPtr> got(4);
    std::vector<std::thread> threads;
    for (auto& region : got) {
      threads.emplace_back(
          [&] { region = cache->acquire(memory.view(4096, 1 << 20)); });
    }
    for (auto& thread : threads) {
      thread.join();
    }
    EXPECT_EQ(cache->entries(), 1U);
    EXPECT_EQ(got, std::vector<MemoryRegionPtr>(4, got.front()));
    EXPECT_EQ(regions(), 1);
  }
}

TEST_F(RegistrationTest, MemoryMayOutliveTheCache) {
  open(SIZE_MAX);
  Memory memory(kLarge);
  cache->acquire(memory.view());
  cache.reset();
  EXPECT_EQ(regions(), 0);
  memory.replace(0);
}

} // namespace
} // namespace dlslime::rdma
