// Use of the CUDA driver, on the fake driver: starting, contexts, kinds of
// memory, words for streams to wait for.
#include <gtest/gtest.h>

#include <thread>

#include "cuda/copy/stream_words.h"
#include "cuda/driver/allocation.h"
#include "fakes/gpu/fake_gpu.h"
#include "fakes/status_of.h"
#include "fakes/world.h"

namespace dlslime::cuda {
namespace {

using dlslime::testing::eventually;
using dlslime::testing::FakeGpu;
using dlslime::testing::mentions;
using dlslime::testing::statusOf;

constexpr size_t kSize = 1 << 20;
constexpr size_t kPiece = 128 << 10; // of mapped memory

// --- Starting ----------------------------------------------------------------

TEST(CudaDriver, MissingLibraryIsSaid) {
  setenv("DLSLIME_CUDA_LIBRARY", "libnothing_like_it.so.1", 1);
  const auto problem = statusOf([] { loadDriver(); });
  EXPECT_EQ(problem.code(), ErrorCode::kUnavailable);
  EXPECT_TRUE(mentions(problem, "libnothing_like_it")) << problem.message();
  EXPECT_TRUE(mentions(problem, "NVIDIA driver")) << problem.message();
  FakeGpu fake;
  EXPECT_EQ(loadDriver().devices, 2) << "it has come meanwhile";
}

TEST(CudaDriver, TooOldDriverIsSaid) {
  setenv("FAKE_CUDA_VERSION", "11020", 1);
  FakeGpu fake;
  const auto problem = statusOf([] { loadDriver(); });
  EXPECT_EQ(problem.code(), ErrorCode::kUnavailable);
  EXPECT_TRUE(mentions(problem, "11.4")) << problem.message();
  EXPECT_TRUE(mentions(problem, "cuDeviceGetUuid")) << problem.message();
}

TEST(CudaDriver, OldDriverLacksOnlyWhatWeCanDoWithout) {
  setenv("FAKE_CUDA_VERSION", "11040", 1);
  FakeGpu fake;
  EXPECT_EQ(loadDriver().streamWaitValue, nullptr);
  EXPECT_FALSE(StreamWords(fake.gpu()).supported());
}

TEST(CudaDriver, ErrorsHaveTheDriversWords) {
  setenv("FAKE_CUDA_FAIL", "cuInit=999", 1);
  FakeGpu fake;
  const auto problem = statusOf([] { loadDriver(); });
  EXPECT_EQ(
      problem.message(),
      "starting the CUDA driver (cuInit) failed: FAKE_CUDA_ERROR_999 (as the "
      "fake driver was told)");
}

TEST(CudaDriver, NoGpuIsNoDriver) {
  setenv("FAKE_CUDA_DEVICES", "0", 1);
  FakeGpu fake;
  EXPECT_EQ(statusOf([] { loadDriver(); }).code(), ErrorCode::kUnavailable);
}

// --- Devices -----------------------------------------------------------------

TEST(CudaGpu, NeverMakesAContext) {
  FakeGpu fake;
  const auto problem = statusOf([&] { Gpu(fake.driver(), 1); });
  EXPECT_EQ(problem.code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(mentions(problem, "GPU 1 has no context")) << problem.message();
  EXPECT_EQ(fake.live("contexts"), 0);
  EXPECT_TRUE(mentions(
      statusOf([&] { Gpu(fake.driver(), 2); }), "this process sees 2"));
}

TEST(CudaGpu, HoldsTheContextAndLetsGo) {
  FakeGpu fake;
  {
    const auto gpu = fake.gpu(1);
    EXPECT_EQ(fake.live("contexts"), 2) << "the program's, and ours";
    EXPECT_EQ(gpu->pciAddress(), "0000:11:00.0");
    EXPECT_EQ(gpu->describe(), "GPU 1 (Fake GPU 1, 0000:11:00.0)");
  }
  EXPECT_EQ(fake.live("contexts"), 1);
}

// --- What memory is
// --------------------------------------------------------------

TEST(CudaAllocation, IsFoundFromTheMiddle) {
  FakeGpu fake;
  const auto gpu = fake.gpu(1);
  const auto base = fake.allocate(*gpu, kSize);
  const auto found = mappedAt(*gpu, base + 1000);
  EXPECT_EQ(found.base, base);
  EXPECT_EQ(found.size, kSize);
  EXPECT_EQ(found.device, 1);
  EXPECT_TRUE(found.legacyIpc);
  EXPECT_TRUE(found.holds(base + kSize - 1, 1));
  EXPECT_FALSE(found.holds(base + kSize - 1, 2));
  EXPECT_FALSE(found.holds(base, SIZE_MAX));
  EXPECT_EQ(
      statusOf([&] { allocationsOf(*gpu, base, kSize + 1); }).code(),
      ErrorCode::kInvalidArgument);
}

TEST(CudaAllocation, HostMemoryIsNone) {
  FakeGpu fake;
  Bytes memory(100);
  const auto address = reinterpret_cast<DevicePointer>(memory.data());
  const auto problem = statusOf([&] { allocationOf(fake.driver(), address); });
  EXPECT_EQ(problem.code(), ErrorCode::kInvalidArgument);
}

TEST(CudaAllocation, MappedMemoryIsThatOfItsPieces) {
  FakeGpu fake;
  const auto gpu = fake.gpu(1);
  const auto base = fake.allocateMapped(*gpu, kPiece, 3);
  const auto all = allocationsOf(*gpu, base + kPiece - 1, kPiece + 2);
  ASSERT_EQ(all.size(), 3U);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(all[i].base, base + i * kPiece);
    EXPECT_EQ(all[i].size, kPiece);
    EXPECT_FALSE(all[i].legacyIpc);
  }
  EXPECT_EQ(allocationsOf(*gpu, base + kPiece, kPiece).size(), 1U);
  // The addresses behind the pieces are reserved, but not mapped.
  EXPECT_EQ(
      statusOf([&] { allocationsOf(*gpu, base, 3 * kPiece + 1); }).code(),
      ErrorCode::kInvalidArgument);
  const auto second = all[1].bufferId;
  fake.unmapPiece(base + kPiece, kPiece);
  fake.mapPiece(*gpu, base + kPiece, kPiece);
  EXPECT_NE(mappedAt(*gpu, base + kPiece).bufferId, second);
}

// --- The fake itself ---------------------------------------------------------

TEST(CudaStream, IsIdleOnceItWasWaitedFor) {
  FakeGpu fake;
  fake.delay(0);
  const auto gpu = fake.gpu();
  const auto stream = fake.stream(*gpu);
  const auto memory = fake.allocate(*gpu, kSize);
  const Gpu::Scope scope(*gpu);
  const auto& driver = fake.driver();
  Event event = nullptr;
  driver.check(driver.eventCreate(&event, kEventDisableTiming), "event");
  for (int i = 0; i < 5000; ++i) {
    driver.check(driver.memcpyAsync(memory, memory + 64, 64, stream), "copy");
    driver.check(driver.eventRecord(event, stream), "record");
    driver.check(driver.streamSynchronize(stream), "wait");
    ASSERT_EQ(driver.streamQuery(stream), Result::kSuccess) << "time " << i;
    ASSERT_EQ(driver.eventQuery(event), Result::kSuccess) << "time " << i;
  }
  driver.eventDestroy(event);
  driver.streamDestroy(stream);
}

// --- Words that streams wait for
// --------------------------------------------------

TEST(CudaStreamWords, StreamTellsWhenItHasComeThere) {
  FakeGpu fake;
  const auto gpu = fake.gpu();
  StreamWords words(gpu);
  const auto stream = fake.stream(*gpu);
  {
    const auto gate = words.take();
    const auto passed = words.take();
    gate.holdBack(stream);
    passed.setBy(stream);
    std::this_thread::sleep_for(milliseconds(20));
    EXPECT_FALSE(passed.isSet()) << "the stream has not come there";
    gate.set();
    EXPECT_TRUE(eventually([&] { return passed.isSet(); }));
  }
  fake.driver().streamDestroy(stream);
}

TEST(CudaStreamWords, EveryUseOfAWordIsNew) {
  FakeGpu fake;
  const auto gpu = fake.gpu();
  StreamWords words(gpu);
  const auto stream = fake.stream(*gpu);
  for (int i = 0; i < 20; ++i) {
    const auto word = words.take();
    EXPECT_FALSE(word.isSet());
    word.setBy(stream);
    EXPECT_TRUE(eventually([&] { return word.isSet(); }));
  }
  EXPECT_EQ(fake.live("pinned"), 1) << "one page is enough";
  fake.driver().streamDestroy(stream);
}

TEST(CudaStreamWords, ThousandsAtATime) {
  FakeGpu fake;
  fake.delay(0);
  const auto gpu = fake.gpu();
  {
    StreamWords words(gpu);
    const auto stream = fake.stream(*gpu);
    std::vector<StreamWords::Word> taken;
    for (int i = 0; i < 3000; ++i) {
      taken.push_back(words.take());
      taken.back().setBy(stream);
    }
    EXPECT_TRUE(eventually([&] { return taken.back().isSet(); }));
    for (const auto& word : taken) {
      EXPECT_TRUE(word.isSet());
    }
    fake.driver().streamDestroy(stream);
  }
  EXPECT_EQ(fake.live("pinned"), 0);
}

TEST(CudaStreamWords, NoPinnedMemoryIsAnError) {
  FakeGpu fake;
  const auto gpu = fake.gpu();
  StreamWords words(gpu);
  fake.fail("cuMemHostAlloc", Result::kOutOfMemory);
  const auto problem = statusOf([&] { words.take(); });
  EXPECT_EQ(problem.code(), ErrorCode::kUnavailable);
  EXPECT_TRUE(words.take()) << "the next one is tried again";
}

} // namespace
} // namespace dlslime::cuda
