// The kernel that copies many small pieces, on the fake driver, which runs the
// kernel's source.
#include <gtest/gtest.h>

#include <random>

#include "cuda/copy/copier.h"
#include "fakes/gpu/fake_gpu.h"
#include "fakes/log_capture.h"
#include "fakes/world.h"

namespace dlslime::cuda {
namespace {

using dlslime::testing::eventually;
using dlslime::testing::FakeGpu;
using dlslime::testing::LogCapture;
using dlslime::testing::pattern;

constexpr size_t kSize = 4 << 20;

class CudaKernel : public ::testing::Test {
 protected:
  void begin(bool useKernel = true) {
    copier.emplace(gpu);
    if (useKernel) {
      copier->useKernel(pinned);
    }
    launched = fake.live("launches"); // by the trial
    fake.driver().streamSynchronize(nullptr);
  }
  Status end() {
    Status status;
    EXPECT_TRUE(eventually([&] {
      const auto ended = copier->takeEnded();
      if (ended) {
        status = ended->status;
      }
      return ended.has_value();
    }));
    return status;
  }
  // Returns `count` pieces of equal size that reverse the order of the bytes'
  // blocks.
  std::vector<Copy> backwards(size_t count, size_t size, size_t offset = 0) {
    std::vector<Copy> pieces;
    for (size_t i = 0; i < count; ++i) {
      pieces.push_back(
          {to + offset + i * size,
           from + offset + (count - 1 - i) * size,
           size});
    }
    return pieces;
  }
  Status copy(const std::vector<Copy>& pieces) {
    copier->start(pieces);
    return end();
  }
  // Expects the bytes of the pieces at their targets, and all bytes around
  // unchanged.
  void expectCopied(const std::vector<Copy>& pieces) {
    const auto source = fake.content(from, kSize);
    Bytes wanted(kSize, std::byte{0xee});
    for (const auto& [target, origin, size] : pieces) {
      std::memcpy(
          wanted.data() + (target - to), source.data() + (origin - from), size);
    }
    EXPECT_TRUE(fake.content(to, kSize) == wanted);
  }
  // Returns the number of launches since begin().
  int launches() {
    return fake.live("launches") - launched;
  }
  // Copies many small pieces until the trial is over and the kernel is in use.
  void settle() {
    ASSERT_TRUE(eventually([&] {
      EXPECT_TRUE(copy(backwards(64, 16)).ok());
      return launches() > 0;
    }));
    launched = fake.live("launches");
    fake.fill(to, Bytes(kSize, std::byte{0xee}));
  }

  LogCapture log{LogLevel::kInfo};
  FakeGpu fake;
  std::shared_ptr<Gpu> gpu = fake.gpu();
  std::shared_ptr<PinnedPool> pinned = std::make_shared<PinnedPool>(gpu);
  DevicePointer from = fake.allocate(*gpu, kSize);
  DevicePointer to = fake.allocate(*gpu, kSize);
  std::optional<Copier> copier;
  int launched = 0;

  void SetUp() override {
    fake.fill(from, pattern(kSize));
    fake.fill(to, Bytes(kSize, std::byte{0xee}));
  }
};

TEST_F(CudaKernel, IsUnloadedInTheEnd) {
  begin();
  settle();
  EXPECT_EQ(fake.live("modules"), 1);
  copier.reset();
  EXPECT_EQ(fake.live("modules"), 0);
}

TEST_F(CudaKernel, ManySmallPiecesGoByOneLaunch) {
  begin();
  settle();
  fake.fail("cuMemcpyAsync", Result::kUnknown, 0, 1000);
  fake.fail("cuMemcpyBatchAsync", Result::kUnknown, 0, 1000);
  const auto pieces = backwards(200, 16 << 10);
  EXPECT_TRUE(copy(pieces).ok());
  EXPECT_EQ(launches(), 1);
  expectCopied(pieces);
}

TEST_F(CudaKernel, PiecesOfAllSizesGoWhereTheyBelong) {
  begin();
  settle();
  std::mt19937 random(7);
  std::vector<Copy> pieces;
  for (size_t at = 0; at + (300 << 10) < kSize;) {
    // Whole vectors and odd sizes, small pieces and pieces too large for the
    // kernel.
    const size_t sizes[] = {
        16, 48, 3 * 4096, 20'000, (16 << 10) + 16, 300 << 10};
    const size_t size = sizes[random() % (pieces.size() < 30 ? 5 : 6)];
    const size_t shift = random() % 4 == 0 ? 1 : 0; // no multiple of 16
    pieces.push_back({to + at, from + (at / 2 / 16 * 16) + shift, size});
    at += (size + 15) / 16 * 16 + 16;
  }
  ASSERT_GT(pieces.size(), 30U);
  EXPECT_TRUE(copy(pieces).ok());
  EXPECT_EQ(launches(), 1);
  expectCopied(pieces);
}

TEST_F(CudaKernel, FewOrLargePiecesGoByCopyEngines) {
  begin();
  settle();
  EXPECT_TRUE(copy(backwards(3, 4096)).ok());
  EXPECT_TRUE(copy(backwards(2, 1 << 20)).ok());
  EXPECT_TRUE(copy(backwards(100, 4096, 8)).ok()) << "no vectors";
  EXPECT_EQ(launches(), 0);
}

TEST_F(CudaKernel, OneThatCopiesWrongIsNotUsed) {
  fake.fail("kernel", Result::kUnknown); // the trial
  begin();
  EXPECT_TRUE(eventually([&] {
    return copy(backwards(64, 16)).ok() && log.count("wrong bytes") == 1;
  }));
  const auto pieces = backwards(100, 4096);
  EXPECT_TRUE(copy(pieces).ok());
  EXPECT_EQ(launches(), 0);
  const auto bytes = fake.content(to, 100 * 4096);
  EXPECT_TRUE(
      std::memcmp(bytes.data(), pattern(kSize).data() + 99 * 4096, 4096) == 0);
}

TEST_F(CudaKernel, WhereItCantBeLoadedCopiesGoOn) {
  for (const char* const call :
       {"cuModuleLoadData", "cuModuleGetFunction", "cuLaunchKernel"}) {
    fake.fail(call, Result::kNotSupported);
    begin();
    const auto pieces = backwards(100, 4096);
    EXPECT_TRUE(copy(pieces).ok());
    EXPECT_EQ(log.count(call), 1U) << log.all();
    EXPECT_EQ(launches(), 0);
  }
}

TEST_F(CudaKernel, ATrialThatNothingTellsTheEndOfIsOverBeforeItsMemoryIsUsed) {
  fake.delay(50'000);
  fake.fail("cuStreamWriteValue32", Result::kUnknown);
  copier.emplace(gpu);
  copier->useKernel(pinned);
  constexpr size_t kMost = 128 << 10; // size of the trial's piece
  const auto again = pinned->take(kMost);
  // All parts differ, so that a late copy by the trial shows.
  Bytes bytes(kMost);
  for (size_t i = 0; i < kMost; ++i) {
    bytes[i] = static_cast<std::byte>(i >> 9);
  }
  std::memcpy(again.get(), bytes.data(), kMost);
  copier.reset(); // waits for the trial
  EXPECT_EQ(std::memcmp(again.get(), bytes.data(), kMost), 0);
  EXPECT_EQ(log.count("instead of dlslime's kernel"), 1U) << log.all();
}

TEST_F(CudaKernel, ALaunchThatIsRefusedIsTheLast) {
  begin();
  settle();
  fake.fail("cuLaunchKernel", Result::kLaunchFailed);
  const auto pieces = backwards(100, 4096);
  EXPECT_TRUE(copy(pieces).ok());
  expectCopied(pieces);
  EXPECT_TRUE(copy(pieces).ok());
  EXPECT_EQ(launches(), 0);
  EXPECT_EQ(log.count("cuLaunchKernel"), 1U) << log.all();
}

TEST_F(CudaKernel, FailureOfTheDeviceIsAnError) {
  begin();
  settle();
  fake.fail("kernel fault", Result::kIllegalAddress);
  const auto status = copy(backwards(100, 4096));
  EXPECT_NE(status.message().find("_700"), std::string::npos)
      << status.message();
}

TEST_F(CudaKernel, NothingIsLeft) {
  begin();
  settle();
  for (int i = 0; i < 50; ++i) {
    copier->start(backwards(100, 4096)); // the destructor waits for the copies
  }
  copier.reset();
  pinned->trim();
  EXPECT_EQ(pinned->memoryUse().idle, 0U);
  EXPECT_EQ(pinned->memoryUse().lasting, 0U);
  EXPECT_EQ(fake.live("streams"), 0);
}

} // namespace
} // namespace dlslime::cuda
