// A lock that a looking thread leaves to threads with work.
#include "engine/progress/engine_mutex.h"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

#include "fakes/world.h"

namespace dlslime {
namespace {

using testing::eventually;

TEST(EngineMutex, KeepsOthersOut) {
  EngineMutex mutex;
  constexpr int kThreads = 4, kRounds = 5000;
  int sum = 0; // guarded by mutex
  std::atomic<int> looks{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, looker = i == 0] {
      for (int round = 0; round < kRounds; ++round) {
        if (looker && mutex.lockIfUnwanted()) {
          ++sum;
          ++looks;
          mutex.unlock();
        } else if (!looker) {
          const std::lock_guard<EngineMutex> guard(mutex);
          ++sum;
        }
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(sum, (kThreads - 1) * kRounds + looks);
}

TEST(EngineMutex, ALookIsRefusedWhileAThreadHasTheLock) {
  EngineMutex mutex;
  const std::lock_guard<EngineMutex> guard(mutex);
  std::thread([&] {
    EXPECT_FALSE(mutex.lockIfUnwanted());
    EXPECT_FALSE(mutex.try_lock());
  }).join();
}

// A plain mutex might go to the looking thread each time.
TEST(EngineMutex, AThreadThatWaitsComesBeforeTheNextLook) {
  EngineMutex mutex;
  std::atomic<bool> came{false};
  mutex.lock();
  std::thread worker([&] {
    const std::lock_guard<EngineMutex> guard(mutex);
    came = true;
  });
  // Waits until the worker wants the lock.
  EXPECT_TRUE(eventually([&] { return mutex.wanted(); }));
  mutex.unlock();
  while (!came) {
    if (mutex.lockIfUnwanted()) {
      EXPECT_TRUE(came) << "a look came before a thread that waited";
      mutex.unlock();
    }
  }
  worker.join();
}

} // namespace
} // namespace dlslime
