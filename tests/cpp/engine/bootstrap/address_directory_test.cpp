#include "engine/bootstrap/address_directory.h"

#include <gtest/gtest.h>

#include <thread>

#include "fakes/peers/scripted_store.h"
#include "fakes/world.h"

namespace dlslime::testing {
namespace {

class AddressDirectoryTest : public ::testing::Test {
 protected:
  AddressDirectory& directory(int size = 4, int rank = 0) {
    return made.emplace(store, rank, size, [this] { ++wakes; });
  }
  void publish(int rank, unsigned seed) {
    store->set(addressKey(rank), pattern(50, seed));
  }
  ::testing::AssertionResult finds(int rank, unsigned seed) {
    AddressDirectory::Found found;
    const bool there = eventually([&] {
      found = made->find(rank);
      return found.record == pattern(50, seed);
    });
    return there ? ::testing::AssertionSuccess()
                 : ::testing::AssertionFailure() << found.problem;
  }
  ::testing::AssertionResult tells(int rank, const std::string& text) {
    AddressDirectory::Found found;
    const bool told = eventually([&] {
      found = made->find(rank);
      return !found.record && found.problem.find(text) != std::string::npos;
    });
    return told ? ::testing::AssertionSuccess()
                : ::testing::AssertionFailure() << found.problem;
  }

  std::shared_ptr<ScriptedStore> store = std::make_shared<ScriptedStore>();
  std::atomic<int> wakes{0};
  std::optional<AddressDirectory> made;
};

TEST_F(AddressDirectoryTest, RecordThatIsThereIsFound) {
  publish(2, 7);
  directory();
  EXPECT_TRUE(finds(2, 7));
  EXPECT_EQ(wakes, 1);
}

TEST_F(AddressDirectoryTest, RecordThatComesLaterIsFoundAndTold) {
  directory();
  EXPECT_TRUE(tells(2, "not in the store yet"));
  EXPECT_EQ(wakes, 0);
  publish(2, 7);
  EXPECT_TRUE(eventually([&] { return wakes == 1; }));
  EXPECT_TRUE(finds(2, 7));
}

TEST_F(AddressDirectoryTest, WhatWasReadAheadOutlivesTheStore) {
  directory();
  made->readAhead();
  EXPECT_TRUE(eventually([&] { return store->asked() > 0; }));
  for (const int rank : {1, 2, 3}) {
    publish(rank, unsigned(rank));
  }
  EXPECT_TRUE(eventually([&] { return wakes == 1; }));
  store->fail("Broken pipe");
  for (const int rank : {1, 2, 3}) {
    EXPECT_EQ(made->find(rank).record, pattern(50, unsigned(rank)));
  }
}

TEST_F(AddressDirectoryTest, ErrorOfTheStoreIsToldAndPasses) {
  publish(2, 7);
  store->fail("Connection reset by peer");
  directory();
  EXPECT_TRUE(tells(2, "can't be read: Connection reset by peer"));
  store->fail("");
  EXPECT_TRUE(finds(2, 7));
}

TEST_F(AddressDirectoryTest, StoreThatFailsForLongIsLost) {
  store->fail("Broken pipe");
  directory();
  EXPECT_TRUE(tells(2, "can't be read: Broken pipe"));
  EXPECT_FALSE(made->find(2).lost) << "the first look failed";
  EXPECT_TRUE(eventually([&] { return made->find(2).lost; }));
  EXPECT_FALSE(made->find(3).lost) << "it has not been looked for";
}

TEST_F(AddressDirectoryTest, StoreThatAnswersAgainIsNotLost) {
  store->fail("Broken pipe");
  directory();
  EXPECT_TRUE(eventually([&] { return made->find(2).lost; }));
  store->fail("");
  EXPECT_TRUE(tells(2, "not in the store yet: it has not called"));
  EXPECT_FALSE(made->find(2).lost);
  store->fail("Connection reset by peer");
  EXPECT_TRUE(tells(2, "Connection reset by peer"));
  EXPECT_FALSE(made->find(2).lost) << "the failures begin anew";
  store->fail("");
  publish(2, 7);
  EXPECT_TRUE(finds(2, 7));
  EXPECT_FALSE(made->find(2).lost);
}

TEST_F(AddressDirectoryTest, FailureLongAgoIsForgottenByANewSearch) {
  store->fail("Broken pipe");
  directory();
  EXPECT_TRUE(tells(2, "Broken pipe"));
  made->drop(2);
  EXPECT_TRUE(eventually([&] { return made->find(3).lost; })); // some time
  store->fail("");
  EXPECT_FALSE(made->find(2).lost) << "no look of this search has failed";
}

TEST_F(AddressDirectoryTest, StoreThatIsHeldUpIsAskedByAnotherConnection) {
  publish(2, 7);
  store->hold();
  directory();
  EXPECT_TRUE(finds(2, 7));
  EXPECT_EQ(store->others(), 1);
}

TEST_F(AddressDirectoryTest, StoreThatNeverAnswersIsTold) {
  publish(2, 7);
  store->refuseOthers();
  store->hold();
  directory();
  EXPECT_TRUE(tells(2, "the group's store has not answered for"));
  EXPECT_TRUE(tells(3, "the group's store has not answered for"));
  EXPECT_TRUE(eventually([&] { return store->others() == 1; }));
  store->release();
  EXPECT_TRUE(finds(2, 7));
}

TEST_F(AddressDirectoryTest, CallThatIsHeldUpOutlivesTheDirectory) {
  store->hold();
  directory();
  made->find(1);
  EXPECT_TRUE(eventually([&] { return store->asked() > 0; }));
  publish(1, 7);
  made.reset();
  store->release();
  const std::weak_ptr<ScriptedStore> watch = store;
  store.reset();
  EXPECT_TRUE(eventually([&] { return watch.expired(); })) << "its thread ends";
  EXPECT_EQ(wakes, 0);
}

TEST_F(AddressDirectoryTest, RefreshedRecordIsReadUntilItIsAnother) {
  publish(1, 7);
  directory();
  EXPECT_TRUE(finds(1, 7));
  made->refresh(1);
  const int asked = store->asked();
  EXPECT_TRUE(eventually([&] { return store->asked() > asked + 2; }));
  EXPECT_EQ(made->find(1).record, pattern(50, 7)) << "the last that was read";
  publish(1, 8);
  EXPECT_TRUE(finds(1, 8));
  EXPECT_EQ(wakes, 2);
}

TEST_F(AddressDirectoryTest, AddressThatIsNotWantedAnyMoreIsNotRead) {
  directory();
  EXPECT_TRUE(tells(1, "not in the store yet"));
  made->drop(1);
  const std::weak_ptr<ScriptedStore> watch = store;
  store.reset();
  made.reset();
  EXPECT_TRUE(eventually([&] { return watch.expired(); }));
}

TEST_F(AddressDirectoryTest, OfALargeGroupTheNearestAreReadAhead) {
  constexpr int kSize = 5000;
  for (int rank = 0; rank < kSize; ++rank) {
    publish(rank, unsigned(rank));
  }
  directory(kSize, 3);
  made->readAhead();
  EXPECT_TRUE(eventually([&] { return wakes == 1; }));
  const auto keys = store->keys();
  EXPECT_EQ(keys.size(), size_t{AddressDirectory::kMostAhead});
  for (const int rank : {2, 4, 0, kSize - 1, 3 + 128, kSize + 3 - 128}) {
    EXPECT_TRUE(keys.contains(addressKey(rank))) << rank;
  }
  EXPECT_FALSE(keys.contains(addressKey(3)));
  EXPECT_TRUE(finds(2500, 2500));
}

TEST_F(AddressDirectoryTest, RankThatEndsWaitsUntilAllHaveRead) {
  AddressDirectory others[] = {{store, 0, 2, [] {}}, {store, 1, 2, [] {}}};
  publish(0, 0);
  publish(1, 1);
  others[0].readAhead();
  std::atomic<bool> ended{false};
  std::thread leaving([&] {
    others[0].awaitReaders(never());
    ended = true;
  });
  EXPECT_TRUE(
      eventually([&] { return store->keys().contains("read-by-all"); }));
  EXPECT_FALSE(ended);
  others[1].readAhead();
  leaving.join();
  others[1].awaitReaders(never());
}

TEST_F(AddressDirectoryTest, RankThatEndsWaitsForNoStoreThatFails) {
  directory();
  made->readAhead();
  store->fail("Broken pipe");
  const auto begun = Clock::now();
  made->awaitReaders(never());
  EXPECT_LT(Clock::now() - begun, std::chrono::seconds(25)) << "it gave up";
}

TEST_F(AddressDirectoryTest, RankOfALargeGroupEndsAtOnce) {
  directory(5000, 3);
  made->readAhead();
  made->awaitReaders(never());
  EXPECT_FALSE(store->keys().contains("read-by-all"));
}

TEST_F(AddressDirectoryTest, InAGroupOfOneNothingIsRead) {
  directory(1, 0);
  made->readAhead();
  made.reset();
  EXPECT_EQ(store->asked(), 0);
}

} // namespace
} // namespace dlslime::testing
