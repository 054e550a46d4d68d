// Limits the mapping of a peer's memory for a single copy, since all further
// copies wait meanwhile.
#include <gtest/gtest.h>

#include "fakes/gpu/gpu_sharer.h"

namespace dlslime::cuda {
namespace {

using dlslime::testing::Mapper;
using dlslime::testing::mentions;
using dlslime::testing::pattern;
using dlslime::testing::Sharer;
using dlslime::testing::toHex;

constexpr size_t kPiece = 64 << 10;
constexpr size_t kPieces = 600;

// Both ends are the test's process, which has been told of all pieces.
class CudaMappingCosts : public ::testing::Test {
 protected:
  CudaMappingCosts() {
    for (size_t i = 0; i < kPieces; ++i) {
      const auto id = exports.of(*sharer.gpu, base + i * kPiece, 1).at(0);
      mapper.add(toHex(encode(exports.describe(id))));
    }
  }
  Status fetchAll() {
    return mapper.move(false, ours, base, kPieces * kPiece);
  }

  Sharer sharer;
  Exports exports{2 * kPieces};
  Mapper mapper{{}, getpid()};
  const DevicePointer base =
      sharer.fake.allocateMapped(*sharer.gpu, kPiece, kPieces);
  const DevicePointer ours = sharer.fake.allocate(*sharer.gpu, kPieces* kPiece);
};

TEST_F(CudaMappingCosts, ManyAllocationsAreMappedBitByBit) {
  sharer.fake.fill(base, pattern(kPieces * kPiece));
  for (const int most : {256, 512}) {
    const auto status = fetchAll();
    EXPECT_TRUE(mentions(status, "not now")) << status.message();
    EXPECT_EQ(sharer.fake.live("imports"), most);
  }
  const auto status = fetchAll();
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(
      sharer.fake.content(ours, kPieces * kPiece), pattern(kPieces * kPiece));
}

TEST_F(CudaMappingCosts, DescriptorsThatDoNotFitAreFetchedBitByBit) {
  exports.dropAllBut({});
  for (const size_t most : {size_t{256}, size_t{512}, kPieces}) {
    const auto status = fetchAll();
    EXPECT_TRUE(mentions(status, "not now")) << status.message();
    EXPECT_EQ(mapper.theirs.takeOutdated().size(), most);
  }
}

} // namespace
} // namespace dlslime::cuda
