// Mapped memory of a GPU whose owner hands the descriptor over, for a process
// that may not copy the descriptor by itself.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>

#include "fakes/gpu/gpu_sharer.h"

namespace dlslime::cuda {
namespace {

using dlslime::testing::eventually;
using dlslime::testing::Mapper;
using dlslime::testing::mentions;
using dlslime::testing::pattern;
using dlslime::testing::Sharer;
using Ids = std::set<uint64_t>;

constexpr size_t kPiece = 128 << 10;
constexpr size_t kBytes = 5000;

size_t openDescriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<size_t>(
      std::distance(std::filesystem::begin(all), std::filesystem::end(all)));
}

// A process with mapped memory, and one that was told of it and knows no pid.
class CudaHandingOver : public ::testing::Test {
 protected:
  CudaHandingOver() {
    sharer.fake.fill(base, bytes);
    mapper.add(sharer.told(base, kBytes).at(0));
  }
  Status read(int device = 0) {
    return mapper.move(
        false, device == 0 ? ours : others, base, kBytes, device);
  }
  // Reads until no pause after a failure keeps the memory from being mapped.
  bool isReadSoon(int device = 0) {
    return eventually([&] { return read(device).ok(); });
  }
  void handOver(uint64_t one) {
    auto handed = sharer.exports.handOver(one);
    ASSERT_TRUE(handed.fd);
    mapper.theirs.take(handed.number, std::move(handed.fd));
  }
  void handOver() {
    handOver(id);
  }
  // Reads until the patience with the owner has ended; returns why.
  Status readInVain() {
    Status status;
    EXPECT_TRUE(eventually([&] {
      status = read();
      return !mentions(status, "not now");
    }));
    return status;
  }

  Sharer sharer;
  const DevicePointer base = sharer.fake.allocateMapped(*sharer.gpu, kPiece, 1);
  const uint64_t id = sharer.idOf(base);
  const Bytes bytes = pattern(kBytes);
  Mapper mapper{{}, 0};
  const DevicePointer ours = mapper.fake.allocate(*mapper.gpu, kBytes);
  const DevicePointer others = mapper.fake.allocate(*mapper.other, kBytes);
};

TEST_F(CudaHandingOver, IsAskedForOnceAndNothingIsCopiedMeanwhile) {
  for (int i = 0; i < 3; ++i) {
    const auto status = read();
    EXPECT_EQ(status.code(), ErrorCode::kUnavailable);
    EXPECT_TRUE(mentions(status, "not now")) << status.message();
    EXPECT_EQ(mapper.theirs.takeUnfetchable(), i == 0 ? Ids{id} : Ids{});
    EXPECT_EQ(mapper.theirs.takeOutdated(), Ids{});
    std::this_thread::sleep_for(milliseconds(11)); // the pause between tries
  }
}

TEST_F(CudaHandingOver, MemoryIsMappedOnceTheDescriptorHasCome) {
  EXPECT_FALSE(read().ok());
  handOver();
  ASSERT_TRUE(isReadSoon());
  EXPECT_EQ(mapper.fake.content(ours, kBytes), bytes);
  EXPECT_EQ(mapper.fake.live("imports"), 1);
  EXPECT_TRUE(read().ok()) << "mapped already";
  EXPECT_EQ(mapper.fake.live("imports"), 1);
}

TEST_F(CudaHandingOver, DescriptorThatComesFirstServes) {
  handOver();
  EXPECT_TRUE(read().ok());
  EXPECT_EQ(mapper.theirs.takeUnfetchable(), Ids{});
}

TEST_F(CudaHandingOver, DescriptorOfAnotherNumberIsNotUsed) {
  auto handed = sharer.exports.handOver(id);
  mapper.theirs.take(handed.number + 1, std::move(handed.fd));
  EXPECT_FALSE(read().ok());
  EXPECT_EQ(mapper.theirs.takeUnfetchable(), Ids{id});
  EXPECT_EQ(mapper.fake.live("imports"), 0);
}

TEST_F(CudaHandingOver, DescriptorOfAnythingElseIsAnErrorAndLeavesNothing) {
  const auto before = openDescriptors();
  const auto number = sharer.exports.handOver(id).number;
  mapper.theirs.take(number, UniqueFd(eventfd(0, EFD_CLOEXEC)));
  EXPECT_FALSE(read().ok());
  EXPECT_EQ(mapper.fake.live("imports"), 0);
  EXPECT_EQ(mapper.fake.live("handles"), 0);
  EXPECT_EQ(openDescriptors(), before);
}

// Else an operation would wait for ever, where it could go by pinned memory.
TEST_F(CudaHandingOver, PatienceWithThePeerEnds) {
  const auto status = readInVain();
  EXPECT_EQ(status.code(), ErrorCode::kUnavailable);
  EXPECT_TRUE(mentions(status, "process_vm_readv")) << status.message();
}

// The owner may have been short of descriptors, or its socket full.
TEST_F(CudaHandingOver, DescriptorThatHasNotComeIsAskedForAgain) {
  EXPECT_FALSE(readInVain().ok());
  EXPECT_TRUE(eventually([&] {
    return !read().ok() && mapper.theirs.takeUnfetchable() == Ids{id};
  }));
  handOver();
  EXPECT_TRUE(isReadSoon());
}

TEST_F(CudaHandingOver, MemoryOfManyPiecesIsHandedOverInParts) {
  constexpr int kPieces = 300; // more than are kept, and than a read tries
  constexpr size_t kAll = kPieces * kPiece;
  const auto many = sharer.fake.allocateMapped(*sharer.gpu, kPiece, kPieces);
  const auto large = mapper.fake.allocate(*mapper.gpu, kAll);
  for (const auto& told : sharer.told(many, kAll)) {
    mapper.add(told);
  }
  size_t most = 0; // asked for at once
  EXPECT_TRUE(eventually([&] {
    const auto status = mapper.move(false, large, many, kAll);
    EXPECT_TRUE(status.ok() || mentions(status, "not now")) << status.message();
    const auto asked = mapper.theirs.takeUnfetchable();
    most = std::max(most, asked.size());
    for (const auto one : asked) {
      handOver(one);
    }
    return status.ok();
  }));
  EXPECT_LE(most, 64U);
  EXPECT_EQ(mapper.fake.live("imports"), kPieces);
}

// What the owner has freed must not take the place of others.
TEST_F(CudaHandingOver, MemoryThatIsFreedMeanwhileIsNotAwaited) {
  for (int i = 0; i < 100; ++i) {
    const auto piece = sharer.fake.allocateMapped(*sharer.gpu, kPiece, 1);
    mapper.add(sharer.told(piece, kBytes).at(0));
    EXPECT_FALSE(mapper.move(false, ours, piece, kBytes).ok());
    EXPECT_EQ(mapper.theirs.takeUnfetchable(), Ids{mapper.ids.back()});
    mapper.theirs.forget(mapper.ids.back());
  }
}

// Each GPU maps the memory for itself, and a descriptor serves once.
TEST_F(CudaHandingOver, SecondGpuAsksForItself) {
  EXPECT_FALSE(read().ok());
  EXPECT_EQ(mapper.theirs.takeUnfetchable(), Ids{id});
  handOver();
  ASSERT_TRUE(isReadSoon());
  EXPECT_FALSE(read(1).ok());
  EXPECT_EQ(mapper.theirs.takeUnfetchable(), Ids{id});
  handOver();
  EXPECT_TRUE(isReadSoon(1));
}

TEST_F(CudaHandingOver, MemoryThatWasUnmappedIsAskedForAgain) {
  EXPECT_FALSE(read().ok());
  handOver();
  ASSERT_TRUE(isReadSoon());
  mapper.theirs.unmapIdle();
  mapper.unused->unmapAll();
  EXPECT_EQ(mapper.fake.live("imports"), 0);
  EXPECT_FALSE(read().ok());
  EXPECT_EQ(mapper.theirs.takeUnfetchable(), Ids{id});
  handOver();
  EXPECT_TRUE(isReadSoon());
}

TEST_F(CudaHandingOver, FewDescriptorsAreKeptForAPeerThatSendsMany) {
  const auto before = openDescriptors();
  for (uint64_t number = 0; number < 500; ++number) {
    mapper.theirs.take(number, UniqueFd(eventfd(0, EFD_CLOEXEC)));
  }
  EXPECT_LE(openDescriptors(), before + 64);
  EXPECT_GT(openDescriptors(), before);
}

TEST_F(CudaHandingOver, OwnerGivesACopyWithTheNumberOfTheDescription) {
  const auto told = sharer.exports.describe(id);
  const auto handed = sharer.exports.handOver(id);
  EXPECT_EQ(handed.number, told.proof.word);
  EXPECT_NE(handed.fd.get(), told.descriptor);
  EXPECT_EQ(fcntl(handed.fd.get(), F_GETFD), FD_CLOEXEC);
}

TEST_F(CudaHandingOver, OwnerHasNoDescriptorOfOtherMemory) {
  EXPECT_FALSE(sharer.exports.handOver(id + 1000).fd);
  const auto plain = sharer.fake.allocate(*sharer.gpu, kPiece); // CUDA IPC
  EXPECT_FALSE(sharer.exports.handOver(sharer.idOf(plain)).fd);
}

} // namespace
} // namespace dlslime::cuda
