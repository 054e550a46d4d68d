#include "base/slab.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>
#include <set>

namespace dlslime {
namespace {

TEST(SlabTest, InsertedValueIsFoundUnderItsId) {
  Slab<int> slab;
  const auto id = slab.insert(42);
  ASSERT_NE(slab.find(id), nullptr);
  EXPECT_EQ(*slab.find(id), 42);
  EXPECT_EQ(slab.size(), 1U);
}

TEST(SlabTest, ZeroIsNeverAnId) {
  Slab<int> slab;
  EXPECT_EQ(slab.find(0), nullptr);
  EXPECT_NE(slab.insert(1), 0U);
  EXPECT_EQ(slab.find(0), nullptr);
}

// A place taken ten thousand times a second uses up all generations in 30
// hours.
TEST(SlabTest, IdsStayBelowTheBitsThatOthersMarkThemBy) {
  Slab<int, Slab<int>::kGenerations - 1> slab;
  std::set<uint64_t> ids;
  for (int i = 0; i < 4; ++i) {
    const auto id = slab.insert(i);
    EXPECT_NE(id, 0U);
    EXPECT_LT(id, 1ULL << 62);
    EXPECT_TRUE(ids.insert(id).second);
    slab.take(id);
  }
}

TEST(SlabTest, StaleIdIsNotFoundAfterItsPlaceIsTakenAgain) {
  Slab<int> slab;
  const auto first = slab.insert(1);
  EXPECT_EQ(slab.take(first), 1);
  EXPECT_EQ(slab.find(first), nullptr);
  const auto second = slab.insert(2);
  EXPECT_NE(first, second);
  EXPECT_EQ(slab.find(first), nullptr);
  EXPECT_EQ(*slab.find(second), 2);
}

TEST(SlabTest, InventedIdsAreNotFound) {
  Slab<int> slab;
  const auto id = slab.insert(1);
  EXPECT_EQ(slab.find(id + 1), nullptr);
  EXPECT_EQ(slab.find(id ^ (1ULL << 32)), nullptr);
  EXPECT_EQ(slab.find(~0ULL), nullptr);
}

TEST(SlabTest, TakenValueIsNotKeptAlive) {
  Slab<std::shared_ptr<int>> slab;
  const auto value = std::make_shared<int>(5);
  const auto id = slab.insert(value);
  EXPECT_EQ(slab.take(id), value);
  EXPECT_EQ(value.use_count(), 1);
}

TEST(SlabTest, AllLiveIdsCanBeTakenInALoop) {
  Slab<int> slab;
  for (int i = 0; i < 100; ++i) {
    const auto id = slab.insert(i);
    if (i % 3 == 0) {
      slab.take(id);
    }
  }
  EXPECT_EQ(slab.ids().size(), slab.size());
  for (const auto id : slab.ids()) {
    slab.take(id);
  }
  EXPECT_EQ(slab.size(), 0U);
  EXPECT_TRUE(slab.ids().empty());
}

TEST(SlabTest, RandomUseAgreesWithAMap) {
  std::mt19937 random(7);
  Slab<int> slab;
  std::map<uint64_t, int> model;
  std::set<uint64_t> ever;
  for (int step = 0; step < 100000; ++step) {
    if (model.empty() || random() % 2 == 0) {
      const auto id = slab.insert(step);
      EXPECT_TRUE(ever.insert(id).second) << "an id came twice";
      model[id] = step;
    } else {
      auto victim = model.lower_bound(*ever.begin());
      std::advance(
          victim,
          static_cast<long>(random() % std::min<size_t>(model.size(), 20)));
      EXPECT_EQ(slab.take(victim->first), victim->second);
      model.erase(victim);
    }
    EXPECT_EQ(slab.size(), model.size());
  }
  for (const auto id : ever) {
    const auto expected = model.find(id);
    const int* const found = slab.find(id);
    ASSERT_EQ(found != nullptr, expected != model.end());
    if (found != nullptr) {
      EXPECT_EQ(*found, expected->second);
    }
  }
}

} // namespace
} // namespace dlslime
