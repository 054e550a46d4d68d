#include "base/memory/stream_copy.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <memory>

#include "fakes/world.h"

namespace dlslime {
namespace {

using ::dlslime::testing::pattern;

constexpr size_t kLine = 64;
constexpr size_t kGuard = 256;

class StreamCopyTest : public ::testing::Test {
 protected:
  // Copies, and checks that the bytes around the destination stay.
  void check(const std::byte* source, size_t size, size_t offset = 0) {
    std::byte* const to = memory.get() + kGuard + offset;
    std::memset(to - kGuard, 0xee, size + 2 * kGuard);
    streamCopy(to, source, size);
    publishStores();
    ASSERT_TRUE(size == 0 || std::memcmp(to, source, size) == 0) << size;
    for (size_t i = 0; i < kGuard; ++i) {
      ASSERT_EQ(to[size + i], std::byte{0xee}) << size << " behind " << i;
      ASSERT_EQ((to - kGuard)[i], std::byte{0xee}) << size << " before " << i;
    }
  }

  struct Free {
    void operator()(std::byte* allocation) const {
      std::free(allocation);
    }
  };
  const std::unique_ptr<std::byte, Free> memory{
      static_cast<std::byte*>(std::aligned_alloc(kLine, 1 << 21))};
};

TEST_F(StreamCopyTest, EverySizeUpToAPageArrives) {
  const std::byte none{};
  check(&none, 0);
  for (size_t size = 1; size <= 4096; ++size) {
    // An allocation of the exact size shows reads beyond the end.
    const Bytes source = pattern(size, 3);
    check(source.data(), size);
  }
}

TEST_F(StreamCopyTest, EveryAlignmentOfTheSourceArrives) {
  for (size_t offset = 0; offset < kLine; ++offset) {
    for (const size_t size : {1, 63, 511, 512, 513, 575, 576, 1000, 4096}) {
      const Bytes source = pattern(offset + size, 9);
      check(source.data() + offset, size);
    }
  }
}

TEST_F(StreamCopyTest, EveryAlignmentOfTheDestinationArrives) {
  for (size_t offset = 0; offset < kLine; ++offset) {
    for (const size_t size : {1, 511, 512, 513, 575, 576, 1000, 4096}) {
      const Bytes source = pattern(size, 9);
      check(source.data(), size, offset);
    }
  }
}

TEST_F(StreamCopyTest, LargeCopyArrives) {
  const Bytes source = pattern((1 << 20) + 13);
  check(source.data(), source.size());
}

} // namespace
} // namespace dlslime
