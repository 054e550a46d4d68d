#include "base/memory/word_read.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <thread>

namespace dlslime::testing {
namespace {

const auto kSelf = static_cast<uint32_t>(getpid());

// On a busy machine the reading thread may start at any time.
TEST(WordReadTest, PatienceBeginsWithTheRead) {
  const uint64_t word = 7;
  WordRead read(kSelf, reinterpret_cast<uint64_t>(&word));
  std::thread late([&] {
    std::this_thread::sleep_for(2 * WordRead::kPatience);
    read.run();
  });
  const auto result = read.await();
  late.join();
  ASSERT_TRUE(result);
  EXPECT_EQ(result->word, word);
  EXPECT_TRUE(WordRead::allowed(kSelf));
}

// On a busy machine the waiting thread may look late.
TEST(WordReadTest, ReadThatHasReturnedIsGoodHoweverLateOneLooks) {
  const uint64_t word = 8;
  WordRead read(kSelf, reinterpret_cast<uint64_t>(&word));
  std::thread([&] { read.run(); }).join();
  std::this_thread::sleep_for(2 * WordRead::kPatience);
  const auto result = read.await();
  ASSERT_TRUE(result);
  EXPECT_EQ(result->word, word);
  EXPECT_TRUE(WordRead::allowed(kSelf));
}

} // namespace
} // namespace dlslime::testing
