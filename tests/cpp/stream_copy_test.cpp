#include "shm/stream_copy.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <memory>

#include "world.h"

namespace dlslime::shm {
namespace {

using ::dlslime::testing::pattern;

constexpr size_t kLine = 64;
constexpr size_t kGuard = 256;

class StreamCopyTest : public ::testing::Test {
 protected:
  // Copies and looks at the bytes behind, which must stay.
  void check(const std::byte* source, size_t size) {
    const size_t padded = (size + kLine - 1) / kLine * kLine;
    std::memset(destination.get(), 0xee, padded + kGuard);
    streamCopy(destination.get(), source, size);
    publishStores();
    ASSERT_EQ(std::memcmp(destination.get(), source, size), 0) << size;
    for (size_t i = padded; i < padded + kGuard; ++i) {
      ASSERT_EQ(destination.get()[i], std::byte{0xee}) << size << " at " << i;
    }
  }

  struct Free {
    void operator()(std::byte* memory) const {
      std::free(memory);
    }
  };
  const std::unique_ptr<std::byte, Free> destination{
      static_cast<std::byte*>(std::aligned_alloc(kLine, 1 << 21))};
};

TEST_F(StreamCopyTest, EverySizeUpToAPageArrives) {
  const std::byte none{};
  check(&none, 0);
  for (size_t size = 1; size <= 4096; ++size) {
    // Of its own allocation, so that a read beyond it is seen.
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

TEST_F(StreamCopyTest, LargeCopyArrives) {
  const Bytes source = pattern((1 << 20) + 13);
  check(source.data(), source.size());
}

} // namespace
} // namespace dlslime::shm
