// What we do with the CUDA driver, on the fake one: starting, contexts, what
// memory is, sharing it with another process, words that streams wait for.
#include <gtest/gtest.h>

#include <thread>

#include "cuda/shared_memory.h"
#include "cuda/stream_words.h"
#include "fakes/child_process.h"
#include "fakes/fake_gpu.h"
#include "world.h"

namespace dlslime::cuda {
namespace {

using dlslime::testing::ChildProcess;
using dlslime::testing::ChildRole;
using dlslime::testing::eventually;
using dlslime::testing::FakeGpu;
using dlslime::testing::pattern;

constexpr size_t kSize = 1 << 20;

template <typename Body>
Status statusOf(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.status();
  }
  return {};
}

bool mentions(const Status& status, const char* text) {
  return status.message().find(text) != std::string::npos;
}

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

TEST(CudaAllocation, IsFoundFromTheMiddle) {
  FakeGpu fake;
  const auto gpu = fake.gpu(1);
  const auto base = fake.allocate(*gpu, kSize);
  const auto found = allocationOf(fake.driver(), base + 1000);
  EXPECT_EQ(found.base, base);
  EXPECT_EQ(found.size, kSize);
  EXPECT_EQ(found.device, 1);
  EXPECT_TRUE(found.legacyIpc);
  EXPECT_TRUE(found.holds(base + kSize - 1, 1));
  EXPECT_FALSE(found.holds(base + kSize - 1, 2));
  EXPECT_FALSE(found.holds(base, SIZE_MAX));
}

TEST(CudaAllocation, HostMemoryIsNone) {
  FakeGpu fake;
  Bytes memory(100);
  const auto address = reinterpret_cast<DevicePointer>(memory.data());
  const auto problem = statusOf([&] { allocationOf(fake.driver(), address); });
  EXPECT_EQ(problem.code(), ErrorCode::kInvalidArgument);
}

// --- Sharing with another process
// ----------------------------------------------

ExportedAllocation fromHex(const std::string& text) {
  ExportedAllocation exported;
  auto* const bytes = reinterpret_cast<unsigned char*>(&exported);
  for (size_t i = 0; i < sizeof(exported); ++i) {
    bytes[i] = static_cast<unsigned char>(
        std::stoi(text.substr(2 * i, 2), nullptr, 16));
  }
  return exported;
}

std::string toHex(const ExportedAllocation& exported) {
  const auto* const bytes = reinterpret_cast<const unsigned char*>(&exported);
  std::string text;
  for (size_t i = 0; i < sizeof(exported); ++i) {
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x", bytes[i]);
    text += digits;
  }
  return text;
}

// Arguments: the export, an address in it, and bytes. Copies them to the place
// behind, by a stream, and exits with 0.
const ChildRole kMapper("cuda mapper", [](const auto& arguments) {
  FakeGpu fake;
  const auto gpu = fake.gpu();
  Imports imports;
  const auto address = std::stoull(arguments.at(1));
  const auto bytes = std::stoull(arguments.at(2));
  {
    const auto exported = fromHex(arguments.at(0));
    const auto mapping = imports.of(gpu, exported);
    if (imports.of(gpu, exported) != mapping) {
      return 2;
    }
    const auto stream = fake.stream(*gpu);
    const Gpu::Scope scope(*gpu);
    const auto& driver = fake.driver();
    driver.check(
        driver.memcpyAsync(
            mapping->at(address + bytes, bytes),
            mapping->at(address, bytes),
            bytes,
            stream),
        "copying");
    driver.check(driver.streamSynchronize(stream), "waiting");
    driver.streamDestroy(stream);
  }
  if (fake.live("imports") != 1) {
    return 3;
  }
  imports.forget(fromHex(arguments.at(0)).id);
  return fake.live("imports") == 0 ? 0 : 4;
});

TEST(CudaSharing, PeerWritesIntoTheMiddleOfAnAllocation) {
  FakeGpu fake;
  const auto gpu = fake.gpu();
  const auto base = fake.allocate(*gpu, kSize);
  const auto bytes = pattern(5000);
  fake.fill(base + 4096, bytes);
  Exports exports;
  const auto exported = exports.of(*gpu, base + 4096, 10000);
  EXPECT_EQ(exported.base, base);
  EXPECT_EQ(exported.size, kSize);
  EXPECT_EQ(exports.of(*gpu, base, kSize).id, exported.id) << "exported once";
  ChildProcess child(
      "cuda mapper",
      {toHex(exported), std::to_string(base + 4096), std::to_string(5000)});
  EXPECT_EQ(child.join(), 0);
  EXPECT_EQ(fake.content(base + 4096 + 5000, 5000), bytes);
}

TEST(CudaSharing, MemoryThatIsFreedAndMadeAnewIsAnotherExport) {
  FakeGpu fake;
  const auto gpu = fake.gpu();
  Exports exports;
  const auto first = fake.allocate(*gpu, kSize);
  const auto before = exports.of(*gpu, first, 1);
  fake.free(first);
  const auto second = fake.allocate(*gpu, kSize);
  ASSERT_EQ(second, first) << "the system gives the same place again";
  const auto after = exports.of(*gpu, second, 1);
  EXPECT_NE(after.id, before.id);
  EXPECT_FALSE(exports.live(before.id)) << "peers are to let go of it";
  EXPECT_TRUE(exports.live(after.id));
}

TEST(CudaSharing, WhatCantBeSharedIsSaidEveryTime) {
  FakeGpu fake;
  const auto gpu = fake.gpu();
  Exports exports;
  const auto pool = fake.allocate(*gpu, kSize);
  fake.denyIpc(pool);
  const auto denied = fake.allocate(*gpu, kSize);
  fake.fail("cuIpcGetMemHandle", Result::kNotPermitted);
  for (int i = 0; i < 2; ++i) {
    const auto one = statusOf([&] { exports.of(*gpu, pool, 1); });
    EXPECT_EQ(one.code(), ErrorCode::kUnavailable);
    EXPECT_TRUE(mentions(one, "expandable_segments")) << one.message();
    const auto other = statusOf([&] { exports.of(*gpu, denied, 1); });
    EXPECT_TRUE(mentions(other, "cuIpcGetMemHandle")) << other.message();
    EXPECT_TRUE(mentions(other, "_800")) << other.message();
  }
  EXPECT_EQ(
      statusOf([&] { exports.of(*gpu, pool, kSize + 1); }).code(),
      ErrorCode::kInvalidArgument);
}

TEST(CudaSharing, MappingThatFailsIsAnErrorAndLeavesNothing) {
  FakeGpu fake;
  const auto gpu = fake.gpu();
  const auto exported = Exports().of(*gpu, fake.allocate(*gpu, kSize), kSize);
  Imports imports;
  const auto own = statusOf([&] { imports.of(gpu, exported); });
  EXPECT_EQ(own.code(), ErrorCode::kUnavailable);
  EXPECT_TRUE(mentions(own, "cuIpcOpenMemHandle")) << own.message();
  EXPECT_EQ(imports.size(), 0U);
  EXPECT_EQ(fake.live("imports"), 0);
}

// Arguments: an export whose size is a lie, and one that is true.
const ChildRole kSceptic("cuda sceptic", [](const auto& arguments) {
  FakeGpu fake;
  const auto gpu = fake.gpu();
  Imports imports;
  const auto lie = statusOf([&] { imports.of(gpu, fromHex(arguments.at(0))); });
  const auto exported = fromHex(arguments.at(1));
  const auto mapping = imports.of(gpu, exported);
  const auto beyond = [&](uint64_t address, size_t bytes) {
    return statusOf([&] { mapping->at(address, bytes); }).code() ==
        ErrorCode::kTransportFailed;
  };
  const bool right = lie.code() == ErrorCode::kTransportFailed &&
      imports.size() == 1 && fake.live("imports") == 1 &&
      beyond(exported.base - 1, 1) && beyond(exported.base, kSize + 1) &&
      beyond(exported.base + kSize, 1) && beyond(exported.base + 1, SIZE_MAX) &&
      !beyond(exported.base + kSize, 0) && !beyond(exported.base, kSize);
  return right ? 0 : 2;
});

TEST(CudaSharing, PeersWordsAreNotTrusted) {
  FakeGpu fake;
  const auto gpu = fake.gpu();
  Exports exports;
  const auto honest = exports.of(*gpu, fake.allocate(*gpu, kSize), kSize);
  auto lie = honest;
  lie.size = kSize + 1;
  ChildProcess child("cuda sceptic", {toHex(lie), toHex(honest)});
  EXPECT_EQ(child.join(), 0);
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
