// Sharing memory of a GPU with a second process, on the fake driver.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "fakes/child_process.h"
#include "fakes/gpu/gpu_sharer.h"

namespace dlslime::cuda {
namespace {

using dlslime::testing::ChildProcess;
using dlslime::testing::ChildRole;
using dlslime::testing::FakeGpu;
using dlslime::testing::fromHex;
using dlslime::testing::Mapper;
using dlslime::testing::mapping;
using dlslime::testing::mentions;
using dlslime::testing::pattern;
using dlslime::testing::Sharer;
using dlslime::testing::statusOf;
using dlslime::testing::toHex;

constexpr size_t kSize = 1 << 20;
constexpr size_t kPiece = 128 << 10; // of mapped memory

// Arguments: an address, a number of bytes, and the descriptions of the memory.
// Copies the bytes to the addresses behind the bytes, by way of the child's own
// GPU.
const ChildRole kMapper("cuda mapper", [](const auto& arguments) {
  const auto address = std::stoull(arguments.at(0));
  const auto bytes = std::stoull(arguments.at(1));
  Mapper mapper({arguments.begin() + 2, arguments.end()});
  auto& fake = mapper.fake;
  const auto ours = fake.allocate(*mapper.gpu, bytes);
  for (int i = 0; i < 2; ++i) { // the second time without mapping
    if (!mapper.move(false, ours, address, bytes).ok() ||
        !mapper.move(true, ours, address + bytes, bytes).ok()) {
      return 2;
    }
  }
  if (fake.live("imports") != static_cast<int>(mapper.ids.size())) {
    return 3;
  }
  for (const auto id : mapper.ids) {
    mapper.theirs.forget(id);
  }
  mapper.unused->unmapAll();
  return fake.live("imports") == 0 && fake.live("handles") == 0 ? 0 : 4;
});

TEST(CudaSharing, PeerWritesIntoTheMiddleOfAnAllocation) {
  Sharer sharer;
  const auto base = sharer.fake.allocate(*sharer.gpu, kSize);
  const auto bytes = pattern(5000);
  sharer.fake.fill(base + 4096, bytes);
  EXPECT_EQ(sharer.idOf(base), sharer.idOf(base + kSize - 1));
  std::vector<std::string> arguments{std::to_string(base + 4096), "5000"};
  for (const auto& text : sharer.told(base + 4096, 10000)) {
    arguments.push_back(text);
  }
  ASSERT_EQ(arguments.size(), 3U);
  ChildProcess child("cuda mapper", arguments);
  EXPECT_EQ(child.join(), 0);
  EXPECT_EQ(sharer.fake.content(base + 4096 + 5000, 5000), bytes);
}

TEST(CudaSharing, PeerWritesAcrossThePiecesOfMappedMemory) {
  Sharer sharer;
  const auto base = sharer.fake.allocateMapped(*sharer.gpu, kPiece, 5);
  const auto from = base + 1000;
  const auto bytes = pattern(2 * kPiece);
  sharer.fake.fill(from, bytes);
  std::vector<std::string> arguments{
      std::to_string(from), std::to_string(bytes.size())};
  for (const auto& text : sharer.told(from, 2 * bytes.size())) {
    arguments.push_back(text);
  }
  ASSERT_EQ(arguments.size(), 2 + 5U);
  EXPECT_EQ(sharer.fake.live("handles"), 0) << "given back when it was shared";
  ChildProcess child("cuda mapper", arguments);
  EXPECT_EQ(child.join(), 0);
  EXPECT_EQ(sharer.fake.content(from + bytes.size(), bytes.size()), bytes);
}

// Maps the Sharer's memory of the given handle types, in the test's process.
class FabricHandles : public ::testing::Test {
 protected:
  Status mapOf(int handleTypes, uint32_t pid = 0) {
    const auto pointer =
        sharer.fake.allocateMapped(*sharer.gpu, kPiece, 1, handleTypes);
    return statusOf([&] {
      const auto told = sharer.exports.describe(sharer.idOf(pointer));
      Mapping(sharer.gpu, told).open(pid);
    });
  }
  Sharer sharer;
  static constexpr int kBoth = kFabricHandle | kDescriptorHandle;
};

TEST_F(FabricHandles, NeedNotKnowTheProcess) {
  EXPECT_TRUE(mapOf(kFabricHandle).ok());
  EXPECT_TRUE(mapOf(kBoth).ok());
  EXPECT_FALSE(mapOf(kDescriptorHandle).ok());
  EXPECT_EQ(sharer.fake.live("handles"), 0);
}

TEST_F(FabricHandles, DescriptorsDoWithoutAChannel) {
  const auto self = static_cast<uint32_t>(getpid());
  sharer.fake.fail("fabric", Result::kNotPermitted, 0, 100); // exporting
  EXPECT_TRUE(mapOf(kBoth, self).ok());
  EXPECT_FALSE(mapOf(kFabricHandle, self).ok());
  sharer.fake.fail("fabric", Result::kNotPermitted, 1, 100); // importing
  EXPECT_TRUE(mapOf(kBoth, self).ok());
  sharer.fake.fail("fabric", Result::kNotPermitted, 1, 100);
  const auto problem = mapOf(kFabricHandle, self);
  EXPECT_TRUE(mentions(problem, "cuMemImportFrom")) << problem.message();
  EXPECT_EQ(sharer.fake.live("handles"), 0);
  EXPECT_EQ(sharer.fake.live("imports"), 0);
}

TEST(CudaSharing, MemoryThatIsFreedAndMadeAnewIsAnotherExport) {
  Sharer sharer;
  const auto first = sharer.fake.allocate(*sharer.gpu, kSize);
  const auto before = sharer.idOf(first);
  sharer.fake.free(first);
  const auto second = sharer.fake.allocate(*sharer.gpu, kSize);
  ASSERT_EQ(second, first) << "the system gives the same place again";
  const auto after = sharer.idOf(second);
  EXPECT_NE(after, before);
  EXPECT_FALSE(sharer.exports.live(before)) << "peers are to let go of it";
  EXPECT_TRUE(sharer.exports.live(after));
  EXPECT_EQ(
      statusOf([&] { sharer.exports.describe(before); }).code(),
      ErrorCode::kInvalidArgument);
}

TEST(CudaSharing, APieceThatIsMappedAnewIsAnotherExportAndItsNeighboursAreNot) {
  Sharer sharer;
  const auto base = sharer.fake.allocateMapped(*sharer.gpu, kPiece, 3);
  const auto before = sharer.exports.of(*sharer.gpu, base, 3 * kPiece);
  sharer.fake.unmapPiece(base + kPiece, kPiece);
  sharer.fake.mapPiece(*sharer.gpu, base + kPiece, kPiece);
  sharer.fake.mapPiece(*sharer.gpu, base + 3 * kPiece, kPiece); // growth
  const auto after = sharer.exports.of(*sharer.gpu, base, 4 * kPiece);
  ASSERT_EQ(after.size(), 4U);
  EXPECT_EQ(after[0], before[0]);
  EXPECT_NE(after[1], before[1]);
  EXPECT_EQ(after[2], before[2]);
  EXPECT_FALSE(sharer.exports.live(before[1]));
}

TEST(CudaSharing, WhatCantBeSharedIsSaidEveryTime) {
  Sharer sharer;
  auto& [fake, gpu, exports] = sharer;
  const auto pool = fake.allocate(*gpu, kSize);
  fake.denyIpc(pool);
  const auto denied = fake.allocate(*gpu, kSize);
  fake.fail("cuIpcGetMemHandle", Result::kNotPermitted);
  const auto closed = fake.allocateMapped(*gpu, kPiece, 1, 0);
  for (int i = 0; i < 2; ++i) {
    const auto one = statusOf([&] { sharer.idOf(pool); });
    EXPECT_EQ(one.code(), ErrorCode::kUnavailable);
    EXPECT_TRUE(mentions(one, "cudaMallocAsync")) << one.message();
    const auto other = statusOf([&] { sharer.idOf(denied); });
    EXPECT_TRUE(mentions(other, "cuIpcGetMemHandle")) << other.message();
    EXPECT_TRUE(mentions(other, "_800")) << other.message();
    const auto third = statusOf([&] { sharer.idOf(closed); });
    EXPECT_TRUE(mentions(third, "HANDLE_TYPE_POSIX")) << third.message();
  }
  EXPECT_EQ(fake.live("handles"), 0);
}

TEST(CudaSharing, NoMoreDescriptorsAreOpenThanItMayHave) {
  FakeGpu fake;
  const auto gpu = fake.gpu();
  Exports exports(3);
  const auto base = fake.allocateMapped(*gpu, kPiece, 10);
  const auto open = [&](uint64_t id) {
    const auto fd = exports.describe(id).descriptor;
    return fd >= 0 && fcntl(fd, F_GETFD) == FD_CLOEXEC;
  };
  const int least = dup(0); // the lowest free number
  close(least);
  std::vector<uint64_t> ids;
  for (size_t i = 0; i < 10; ++i) {
    ids.push_back(exports.of(*gpu, base + i * kPiece, 1).at(0));
  }
  EXPECT_EQ(fcntl(least + 3 + 1, F_GETFD), -1) << "one is made before one goes";
  for (const auto id : ids) { // closed descriptors are opened again
    EXPECT_TRUE(open(id));
  }
  EXPECT_EQ(exports.of(*gpu, base, 3 * kPiece).size(), 3U);
  const auto many = statusOf([&] { exports.of(*gpu, base, 3 * kPiece + 1); });
  EXPECT_TRUE(mentions(many, "ulimit -n")) << many.message();
}

TEST(CudaSharing, MappingThatFailsIsAnErrorAndLeavesNothing) {
  Sharer sharer;
  auto& [fake, gpu, exports] = sharer;
  const auto map = [&, &gpuOfIt = gpu](DevicePointer pointer, uint32_t pid) {
    const auto told = sharer.exports.describe(sharer.idOf(pointer));
    return mapping(gpuOfIt, told, pid);
  };
  const auto own = map(fake.allocate(*gpu, kSize), 0);
  EXPECT_EQ(own.code(), ErrorCode::kUnavailable);
  EXPECT_TRUE(mentions(own, "cuIpcOpenMemHandle")) << own.message();
  const auto mapped = fake.allocateMapped(*gpu, kPiece, 1);
  const auto self = static_cast<uint32_t>(getpid());
  for (const char* const call :
       {"cuMemImportFromShareableHandle",
        "cuMemAddressReserve",
        "cuMemMap",
        "cuMemSetAccess",
        "cuMemGetAddressRange"}) {
    const auto told = exports.describe(sharer.idOf(mapped));
    fake.fail(call, Result::kPeerAccessUnsupported);
    const auto problem = mapping(sharer.gpu, told, self);
    EXPECT_TRUE(mentions(problem, call)) << problem.message();
    EXPECT_EQ(fake.live("imports"), 0) << call;
    EXPECT_EQ(fake.live("handles"), 0) << call;
  }
  EXPECT_TRUE(map(mapped, self).ok()) << "the fake maps its own memory";
  const auto unknown = map(mapped, 0);
  EXPECT_TRUE(mentions(unknown, "process_vm_readv")) << unknown.message();
  const auto absent = map(mapped, 0x7fffffff);
  EXPECT_TRUE(mentions(absent, "pidfd_open")) << absent.message();
}

// Arguments: a false description of an allocation, and the true description.
const ChildRole kSceptic("cuda sceptic", [](const auto& arguments) {
  Mapper mapper({});
  const auto lie = fromHex(arguments.at(0)), truth = fromHex(arguments.at(1));
  const auto known = decodeAllocation(truth);
  const auto ours = mapper.fake.allocate(*mapper.gpu, 2 * kSize);
  const auto fails = [&](uint64_t address, size_t bytes) {
    return mapper.move(false, ours, address, bytes).code() ==
        ErrorCode::kTransportFailed;
  };
  mapper.theirs.add(known.id, lie);
  const bool mapped = mapper.move(false, ours, known.base, 1).ok();
  mapper.unused->unmapAll();
  if (mapped || mapper.fake.live("imports") != 0 ||
      mapper.fake.live("handles") != 0) {
    return 2;
  }
  mapper.theirs.add(known.id, truth);
  const bool wrongId = statusOf([&] {
                         mapper.theirs.add(known.id + 1, truth);
                       }).code() == ErrorCode::kTransportFailed;
  const bool right = wrongId && fails(known.base - 1, 1) &&
      fails(known.base, known.size + 1) && fails(known.base + known.size, 1) &&
      fails(known.base + 1, known.size) && !fails(known.base, known.size) &&
      mapper.fake.live("imports") == 1;
  return right ? 0 : 3;
});

TEST(CudaSharing, PeersWordsAreNotTrusted) {
  Sharer sharer;
  const DevicePointer all[] = {
      sharer.fake.allocate(*sharer.gpu, kSize),
      sharer.fake.allocateMapped(*sharer.gpu, kPiece, 1)};
  ExportedAllocation honest;
  for (const auto pointer : all) {
    honest = sharer.exports.describe(sharer.idOf(pointer));
    auto lie = honest;
    lie.size += kPiece;
    ChildProcess child(
        "cuda sceptic", {toHex(encode(lie)), toHex(encode(honest))});
    EXPECT_EQ(child.join(), 0);
  }
  auto bytes = encode(honest);
  bytes.pop_back();
  EXPECT_EQ(
      statusOf([&] { decodeAllocation(bytes); }).code(),
      ErrorCode::kTransportFailed);
}

} // namespace
} // namespace dlslime::cuda
