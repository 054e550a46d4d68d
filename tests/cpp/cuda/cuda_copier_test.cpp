// Copies by a GPU's stream, on the fake driver.
#include <gtest/gtest.h>

#include <thread>

#include "cuda/copy/copier.h"
#include "fakes/gpu/fake_gpu.h"
#include "fakes/world.h"

namespace dlslime::cuda {
namespace {

using dlslime::testing::eventually;
using dlslime::testing::FakeGpu;
using dlslime::testing::pattern;

constexpr size_t kSize = 1 << 20;

// Parameter: whether the driver lets streams write words.
class CudaCopier : public ::testing::TestWithParam<bool> {
 protected:
  CudaCopier() {
    if (!GetParam()) {
      setenv("FAKE_CUDA_VERSION", "11040", 1);
    }
    gpu = fake.gpu();
    copier.emplace(gpu);
  }
  // Returns the ends of the next copies, in the order of takeEnded().
  std::vector<Copier::Ended> ends(size_t count) {
    std::vector<Copier::Ended> all;
    EXPECT_TRUE(eventually([&] {
      while (auto one = copier->takeEnded()) {
        all.push_back(std::move(*one));
      }
      return all.size() >= count;
    }));
    return all;
  }
  DevicePointer pinned(size_t size) {
    const Gpu::Scope scope(*gpu);
    void* memory = nullptr;
    fake.driver().check(
        fake.driver().hostAlloc(&memory, size, kHostAllocPortable), "pin");
    return reinterpret_cast<DevicePointer>(memory);
  }

  FakeGpu fake;
  std::shared_ptr<Gpu> gpu;
  std::optional<Copier> copier;
};

TEST_P(CudaCopier, PiecesGoWhereTheyBelong) {
  const auto one = fake.allocate(*gpu, kSize);
  const auto other = fake.allocate(*gpu, kSize);
  const auto host = pinned(kSize);
  const auto bytes = pattern(kSize);
  fake.fill(one, bytes);
  const std::vector<Copy> there{
      {other, one, 1000}, {other + 5000, one + 3000, 700}, {other, one, 0}};
  const std::vector<Copy> back{{host, other + 5000, 700}};
  const auto first = copier->start(there);
  const auto second = copier->start(back);
  const auto ended = ends(2);
  ASSERT_EQ(ended.size(), 2U);
  EXPECT_EQ(ended[0].id, first);
  EXPECT_EQ(ended[1].id, second);
  EXPECT_TRUE(ended[0].status.ok() && ended[1].status.ok());
  EXPECT_TRUE(copier->idle());
  EXPECT_EQ(
      fake.content(other, 1000), Bytes(bytes.begin(), bytes.begin() + 1000));
  EXPECT_EQ(
      std::memcmp(reinterpret_cast<void*>(host), bytes.data() + 3000, 700), 0);
}

// Adjacent pieces may belong to neighbouring allocations, so the copier must
// not merge pieces.
TEST_P(CudaCopier, NeighboursStayApart) {
  const auto one = fake.allocate(*gpu, kSize);
  const auto other = fake.allocate(*gpu, kSize);
  fake.fail("cuMemcpyAsync", Result::kInvalidValue, 1); // the second call
  const std::vector<Copy> pieces{
      {other, one, 4000}, {other + 4000, one + 4000, 4000}};
  copier->start(pieces);
  EXPECT_FALSE(ends(1).front().status.ok()) << "of one call there is no second";
}

TEST_P(CudaCopier, ManyPiecesGoByOneCallWhereTheDriverHasIt) {
  const auto one = fake.allocate(*gpu, kSize);
  const auto other = fake.allocate(*gpu, kSize);
  const auto bytes = pattern(kSize);
  fake.fill(one, bytes);
  std::vector<Copy> pieces;
  constexpr size_t kPiece = kSize / 64;
  for (size_t i = 0; i < 64; ++i) { // backwards: no two pieces are adjacent
    pieces.push_back({other + i * kPiece, one + (63 - i) * kPiece, kPiece});
  }
  const bool batches = fake.driver().memcpyBatchAsync != nullptr;
  fake.fail("cuMemcpyAsync", Result::kInvalidValue, batches ? 0 : 64);
  copier->start(pieces);
  EXPECT_TRUE(ends(1).front().status.ok());
  const auto there = fake.content(other, kSize);
  for (size_t i = 0; i < 64; ++i) {
    ASSERT_EQ(
        std::memcmp(
            there.data() + i * kPiece,
            bytes.data() + (63 - i) * kPiece,
            kPiece),
        0)
        << i;
  }
  if (batches) {
    fake.fail("cuMemcpyBatchAsync", Result::kIllegalAddress);
    copier->start(pieces);
    const auto status = ends(1).front().status;
    EXPECT_NE(status.message().find("cuMemcpyBatchAsync"), std::string::npos)
        << status.message();
  }
}

TEST_P(CudaCopier, NothingEndsWell) {
  copier->start({});
  EXPECT_TRUE(ends(1).front().status.ok());
}

TEST_P(CudaCopier, RefusedPieceIsAnErrorOnceTheOthersAreOver) {
  const auto one = fake.allocate(*gpu, kSize);
  const std::vector<Copy> good{{one, one + 5000, 100}};
  const std::vector<Copy> bad{
      {one, one + 5000, 100}, {one + kSize - 10, one, 100}};
  copier->start(good);
  const auto failing = copier->start(bad);
  copier->start(good);
  const auto ended = ends(3);
  EXPECT_TRUE(ended[0].status.ok());
  EXPECT_EQ(ended[1].id, failing);
  EXPECT_NE(ended[1].status.message().find("cuMemcpyAsync"), std::string::npos)
      << ended[1].status.message();
  EXPECT_TRUE(ended[2].status.ok()) << "the stream goes on";
}

TEST_P(CudaCopier, FailureOfTheDeviceEndsAllThatIsUnderWay) {
  const auto one = fake.allocate(*gpu, kSize);
  const std::vector<Copy> copies{{one, one + 5000, 100}};
  copier->start(copies);
  EXPECT_TRUE(ends(1)[0].status.ok());
  fake.fail("copy", Result::kIllegalAddress);
  for (int i = 0; i < 3; ++i) {
    copier->start(copies);
  }
  const auto ended = ends(3);
  ASSERT_EQ(ended.size(), 3U);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_NE(ended[i].status.message().find("_700"), std::string::npos)
        << i << ": " << ended[i].status.message();
  }
  EXPECT_TRUE(copier->idle());
}

// A program captures a graph in a stream of its own; calls that would disturb
// the capture are refused meanwhile.
TEST_P(CudaCopier, CaptureByTheProgramDisturbsNoCopies) {
  const auto one = fake.allocate(*gpu, kSize);
  const std::vector<Copy> copies{{one, one + 5000, 100}};
  fake.delay(30000); // long enough for looks for failures
  fake.capture(reinterpret_cast<Stream>(&fake));
  for (int i = 0; i < 4; ++i) {
    copier->start(copies);
  }
  for (const auto& ended : ends(4)) {
    EXPECT_TRUE(ended.status.ok()) << ended.status.message();
  }
  fake.capture(nullptr);
}

TEST_P(CudaCopier, AnswerThatSaysNothingOfTheStreamEndsNothing) {
  const auto one = fake.allocate(*gpu, kSize);
  const std::vector<Copy> copies{{one, one + 5000, 100}};
  fake.delay(30000); // long enough for looks for failures
  fake.fail("cuStreamQuery", Result::kStreamCaptureUnsupported, 0, 2);
  copier->start(copies);
  EXPECT_TRUE(ends(1).front().status.ok());
}

TEST_P(CudaCopier, NoMarkIsAnErrorOnceTheStreamIsEmpty) {
  const auto one = fake.allocate(*gpu, kSize);
  const std::vector<Copy> copies{{one, one + 5000, 100}};
  fake.fail("cuStreamWriteValue32", Result::kOutOfMemory);
  fake.fail("cuEventRecord", Result::kOutOfMemory);
  copier->start(copies);
  EXPECT_FALSE(ends(1).front().status.ok());
  copier->start(copies);
  EXPECT_TRUE(ends(1).front().status.ok());
}

TEST_P(CudaCopier, ThousandsUnderWayAndNothingLeft) {
  fake.delay(0);
  const auto one = fake.allocate(*gpu, kSize);
  const std::vector<Copy> copies{{one, one + 5000, 100}};
  for (int i = 0; i < 3000; ++i) {
    copier->start(copies);
  }
  const auto ended = ends(3000);
  ASSERT_EQ(ended.size(), 3000U);
  EXPECT_EQ(ended.back().id, 3000U);
  copier->start(copies); // the destructor waits for the copy
  copier.reset();
  EXPECT_EQ(fake.live("streams"), 0);
  EXPECT_EQ(fake.live("events"), 0);
  EXPECT_EQ(fake.live("pinned"), 0);
}

INSTANTIATE_TEST_SUITE_P(
    Driver,
    CudaCopier,
    ::testing::Bool(),
    [](const auto& which) {
      return std::string(which.param ? "Words" : "Events");
    });

} // namespace
} // namespace dlslime::cuda
