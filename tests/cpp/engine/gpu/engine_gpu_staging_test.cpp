// Pinned memory that a peer can make the process hold, if a GPU's bytes go
// through messages.
#include <gtest/gtest.h>

#include "fakes/gpu/gpu_region.h"
#include "fakes/gpu/gpu_world.h"

namespace dlslime::testing {
namespace {

constexpr size_t kSize = 2 << 20;
constexpr size_t kMiB = 1 << 20;

class PinnedMemory : public GpuWorld {
 protected:
  PinnedMemory() : here(node(0), nullptr, pattern(kSize, 1)) {}
  // Returns the pinned memory made by rank 1 so far.
  size_t pinned() {
    const auto use = node(1).engine->memoryUse(*node(1).group);
    return use.idle + use.lasting;
  }
  void expectAllEndWell(const std::vector<TestTransferPtr>& transfers) {
    for (const auto& transfer : transfers) {
      EXPECT_TRUE(endsWell(*transfer));
    }
  }

  GpuRegion here;
  GpuRegion there{node(1), &other, pattern(kSize, 2)};
};

TEST_P(PinnedMemory, OfManyReadsAFewHoldSome) {
  fake.delay(3000);
  std::vector<TestTransferPtr> reads;
  for (int i = 0; i < 64; ++i) {
    reads.push_back(here.read(1, there, {{0, 0, kSize}}));
  }
  expectAllEndWell(reads);
  EXPECT_TRUE(here.content() == there.first());
  EXPECT_LE(pinned(), 36 * kMiB) << "of 128";
}

TEST_P(PinnedMemory, OfWritesThatAreQuickerThanTheGpuIsBounded) {
  fake.delay(1000);
  std::vector<TestTransferPtr> writes;
  for (int i = 0; i < 80; ++i) {
    writes.push_back(here.write(1, there, {{0, 0, kSize}}));
  }
  expectAllEndWell(writes);
  EXPECT_TRUE(there.content() == here.first());
  EXPECT_LE(pinned(), 100 * kMiB) << "of 160";
}

INSTANTIATE_TEST_SUITE_P(
    Routes,
    PinnedMemory,
    ::testing::Values(
        GpuWay{"Tcp", RoutePolicy::kTcp},
        GpuWay{"Gloo", RoutePolicy::kGloo}),
    nameOfWay);

} // namespace
} // namespace dlslime::testing
