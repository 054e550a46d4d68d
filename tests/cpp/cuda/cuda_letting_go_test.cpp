// Memory of a GPU given back after sharing, and descriptors that have come to
// stand for memory other than the peer was told.
#include <fcntl.h>
#include <gtest/gtest.h>

#include "fakes/gpu/gpu_sharer.h"

namespace dlslime::cuda {
namespace {

using dlslime::testing::eventually;
using dlslime::testing::Mapper;
using dlslime::testing::mentions;
using dlslime::testing::pattern;
using dlslime::testing::Sharer;
using dlslime::testing::statusOf;
using dlslime::testing::toHex;

constexpr size_t kSize = 1 << 20;
constexpr size_t kPiece = 128 << 10; // of mapped memory
constexpr int kPieces = 8;
constexpr size_t kMost = 2; // open descriptors

// Both ends are the test's process, as the fake permits for mapped memory.
class CudaLettingGo : public ::testing::Test {
 protected:
  DevicePointer piece(int i) const {
    return base + kPiece * static_cast<size_t>(i);
  }
  uint64_t idOf(int i) {
    return exports.of(*sharer.gpu, piece(i), 1).at(0);
  }
  std::string told(int i) {
    return toHex(encode(exports.describe(idOf(i))));
  }
  // Fetches a whole piece; ok if the right bytes came.
  Status fetch(int i) {
    const auto ours = sharer.fake.allocate(*sharer.gpu, kPiece);
    const auto status = mapper.move(false, ours, piece(i), kPiece);
    const auto content = sharer.fake.content(ours, kPiece);
    sharer.fake.free(ours);
    const bool right = content == pattern(kPiece, static_cast<unsigned>(i));
    return status.ok() && !right
        ? Status(ErrorCode::kTransportFailed, "other bytes")
        : status;
  }
  // Fetches the first piece by a given GPU.
  Status fetchBy(int device) {
    const auto ours = sharer.fake.allocate(*sharer.gpu, kPiece);
    const auto status = mapper.move(false, ours, piece(0), kPiece, device);
    sharer.fake.free(ours);
    return status;
  }
  int mapped() {
    mapper.unused->unmapAll();
    return sharer.fake.live("imports");
  }

  CudaLettingGo() {
    for (int i = 0; i < kPieces; ++i) {
      sharer.fake.fill(piece(i), pattern(kPiece, static_cast<unsigned>(i)));
    }
  }

  Sharer sharer;
  Exports exports{kMost};
  Mapper mapper{{}, getpid()};
  const DevicePointer base =
      sharer.fake.allocateMapped(*sharer.gpu, kPiece, kPieces);
};

TEST_F(CudaLettingGo, ANumberThatIsAnotherDescriptorsByNowIsNotTakenForIt) {
  const auto first = exports.describe(idOf(0));
  mapper.add(told(0));
  for (int i = 1; i < kPieces; ++i) {
    idOf(i);
  }
  ASSERT_NE(fcntl(first.descriptor, F_GETFD), -1)
      << "it is open, and another piece's";
  const auto late = fetch(0);
  EXPECT_TRUE(mentions(late, "not now")) << late.message();
  EXPECT_EQ(mapped(), 0);
  const std::set<uint64_t> outdated{first.id};
  EXPECT_EQ(mapper.theirs.takeOutdated(), outdated);
  EXPECT_FALSE(fetch(0).ok()) << "it has not been described anew";
  EXPECT_EQ(mapper.theirs.takeOutdated(), outdated) << "nor asked for in vain";
  mapper.add(told(0));
  const auto anew = fetch(0);
  EXPECT_TRUE(anew.ok()) << anew.message();
  EXPECT_TRUE(mapper.theirs.takeOutdated().empty());
}

// A new proof word may get the address of the old word.
TEST_F(CudaLettingGo, ADescriptorThatIsMadeAnewIsAnotherOfTheSameMemory) {
  const auto first = exports.describe(idOf(0));
  for (int i = 1; i < kPieces; ++i) {
    idOf(i);
  }
  const auto honest = exports.describe(first.id);
  EXPECT_EQ(honest.id, first.id);
  EXPECT_NE(honest.proof.word, first.proof.word);
  const auto self = static_cast<uint32_t>(getpid());
  for (const auto word : {first.proof.word, uint64_t{0}}) {
    auto told = honest;
    told.proof.word = word;
    EXPECT_THROW(Mapping(sharer.gpu, told).open(self), OutdatedDescriptor);
  }
  EXPECT_NO_THROW(Mapping(sharer.gpu, honest).open(self));
}

TEST_F(CudaLettingGo, ADescriptorThatIsClosedIsAskedForAgain) {
  mapper.add(told(0));
  exports.dropAllBut({});
  EXPECT_FALSE(fetch(0).ok());
  EXPECT_EQ(mapper.theirs.takeOutdated().size(), 1U);
}

TEST_F(CudaLettingGo, WhatIsMappedNeedsItsDescriptorNoMore) {
  mapper.add(told(0));
  ASSERT_TRUE(fetch(0).ok());
  for (int i = 1; i < kPieces; ++i) {
    idOf(i);
  }
  EXPECT_TRUE(fetch(0).ok());
  EXPECT_EQ(mapped(), 1);
}

TEST_F(CudaLettingGo, IdleMappingsEndAndComeBackWithTheirNextUse) {
  for (int i = 0; i < 3; ++i) {
    mapper.add(told(i));
    ASSERT_TRUE(fetch(i).ok());
  }
  EXPECT_EQ(mapped(), 3);
  mapper.theirs.unmapIdle();
  EXPECT_EQ(mapped(), 0);
  EXPECT_TRUE(fetch(2).ok());
  EXPECT_FALSE(fetch(0).ok()) << "its descriptor was closed for the third";
  mapper.add(told(0));
  EXPECT_TRUE(fetch(0).ok());
  EXPECT_EQ(mapped(), 2);
}

TEST_F(CudaLettingGo, HalfMappedMemoryIsLeftToAThreadThatMayWaitForTheGpu) {
  mapper.add(told(0));
  sharer.fake.fail("cuMemSetAccess", Result::kPeerAccessUnsupported);
  const auto problem = fetch(0);
  EXPECT_TRUE(mentions(problem, "cuMemSetAccess")) << problem.message();
  EXPECT_EQ(sharer.fake.live("imports"), 1) << "unmapped, under a lock";
  EXPECT_EQ(mapped(), 0);
  EXPECT_EQ(sharer.fake.live("handles"), 0);
}

TEST_F(CudaLettingGo, WhatCouldNotBeMappedIsTriedAgain) {
  mapper.add(told(0));
  sharer.fake.fail("cuMemImportFromShareableHandle", Result::kOutOfMemory);
  const auto problem = fetch(0);
  EXPECT_TRUE(mentions(problem, "cuMemImport")) << problem.message();
  EXPECT_TRUE(eventually([&] { return fetch(0).ok(); }));
}

TEST_F(CudaLettingGo, WhatOneGpuCantMapAnotherMay) {
  mapper.add(told(0));
  sharer.fake.fail("cuMemSetAccess", Result::kPeerAccessUnsupported, 0, 1000);
  EXPECT_TRUE(mentions(fetchBy(1), "cuMemSetAccess"));
  mapper.unused->unmapAll();
  sharer.fake.fail("cuMemSetAccess", Result::kSuccess, 0, 0);
  EXPECT_TRUE(fetchBy(0).ok());
}

// The remains of a failed try block the next try until unmapped.
TEST_F(CudaLettingGo, WhatFailsHalfwayIsTriedEverMoreRarely) {
  mapper.add(told(0));
  mapper.add(told(1));
  const auto why = Result::kPeerAccessUnsupported;
  sharer.fake.fail("cuMemSetAccess", why, 0, 1000000);
  for (int i = 0; i < 100; ++i) {
    EXPECT_TRUE(mentions(fetch(0), "cuMemSetAccess"));
    EXPECT_FALSE(fetch(1).ok());
  }
  EXPECT_LT(sharer.fake.live("imports"), 20) << "of 200 fetches";
  EXPECT_TRUE(eventually([&] { return mentions(fetch(1), "cuMemSetAccess"); }));
  mapper.unused->unmapAll();
  sharer.fake.fail("cuMemSetAccess", Result::kSuccess, 0, 0);
  EXPECT_TRUE(eventually([&] { return fetch(1).ok(); }));
}

TEST_F(CudaLettingGo, WhatIsOutdatedIsAskedForWhateverHasFailedBefore) {
  mapper.add(told(0));
  sharer.fake.fail("cuMemSetAccess", Result::kPeerAccessUnsupported);
  EXPECT_TRUE(mentions(fetchBy(1), "cuMemSetAccess"));
  mapper.unused->unmapAll();
  exports.dropAllBut({});
  for (const int device : {0, 1}) {
    EXPECT_TRUE(mentions(fetchBy(device), "not now"));
    EXPECT_EQ(mapper.theirs.takeOutdated().size(), 1U) << device;
  }
}

TEST_F(CudaLettingGo, ACopyKeepsWhatItIsInMapped) {
  mapper.add(told(0));
  const auto ours = sharer.fake.allocate(*sharer.gpu, kPiece);
  const Piece whole{reinterpret_cast<std::byte*>(ours), piece(0), kPiece};
  auto& copier = mapper.copier;
  mapper.theirs.move(0, false, {&whole, 1}, [](const Status&) {});
  mapper.theirs.unmapIdle();
  mapper.theirs.forget(mapper.ids.at(0));
  EXPECT_EQ(mapped(), 1);
  ASSERT_TRUE(eventually([&] { return copier.takeEnded().has_value(); }));
  mapper.running = nullptr;
  EXPECT_EQ(mapped(), 0);
}

TEST_F(CudaLettingGo, WhatIsFreedIsFoundAndTheRestStays) {
  const auto one = idOf(0), other = idOf(1);
  const auto whole = sharer.fake.allocate(*sharer.gpu, kSize);
  const auto third = exports.of(*sharer.gpu, whole, 1).at(0);
  EXPECT_FALSE(exports.dropFreed());
  sharer.fake.unmapPiece(piece(0), kPiece);
  sharer.fake.free(whole);
  EXPECT_TRUE(exports.live(one)) << "no thread has looked";
  EXPECT_TRUE(exports.dropFreed());
  EXPECT_FALSE(exports.live(one));
  EXPECT_FALSE(exports.live(third));
  EXPECT_TRUE(exports.live(other));
  EXPECT_FALSE(exports.dropFreed());
  EXPECT_EQ(idOf(1), other);
}

TEST_F(CudaLettingGo, AllButSomeAreNotSharedAnyMoreAndHaveNoDescriptor) {
  const auto one = exports.describe(idOf(0)), other = exports.describe(idOf(1));
  exports.dropAllBut({other.id});
  EXPECT_EQ(fcntl(one.descriptor, F_GETFD), -1);
  EXPECT_NE(fcntl(other.descriptor, F_GETFD), -1);
  EXPECT_FALSE(exports.live(one.id));
  EXPECT_NE(idOf(0), one.id) << "peers have let go of that one";
  EXPECT_EQ(idOf(1), other.id);
}

TEST_F(CudaLettingGo, WhatLiesAcrossWhatWasThereBeforeTakesItsPlace) {
  mapper.add(told(1));
  mapper.add(told(2));
  ASSERT_TRUE(fetch(1).ok());
  const auto before = idOf(1), behind = idOf(2);
  for (const int i : {0, 1}) {
    sharer.fake.unmapPiece(piece(i), kPiece);
  }
  sharer.fake.mapPiece(*sharer.gpu, piece(0), 2 * kPiece); // a double piece
  auto bytes = pattern(2 * kPiece, 7);
  sharer.fake.fill(piece(0), bytes);
  const auto now = exports.describe(idOf(1));
  EXPECT_EQ(now.base, piece(0));
  EXPECT_FALSE(exports.live(before)) << "although no thread has looked";
  EXPECT_TRUE(exports.live(behind));
  EXPECT_TRUE(exports.dropFreed()) << "other peers are to be told";
  EXPECT_FALSE(exports.dropFreed());
  mapper.add(toHex(encode(now))); // and nothing of the replaced pieces
  const auto ours = sharer.fake.allocate(*sharer.gpu, kPiece);
  ASSERT_TRUE(mapper.move(false, ours, piece(1), kPiece).ok());
  bytes.erase(bytes.begin(), bytes.begin() + kPiece);
  EXPECT_EQ(sharer.fake.content(ours, kPiece), bytes);
  EXPECT_TRUE(fetch(2).ok());
}

} // namespace
} // namespace dlslime::cuda
