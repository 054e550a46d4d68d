#include "base/memory/shared_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <optional>

#include "fakes/child_process.h"
#include "fakes/hex.h"
#include "fakes/status_of.h"
#include "fakes/world.h"

namespace dlslime::testing {
namespace {

constexpr size_t kSize = 100'000;

const auto kSelf = static_cast<uint32_t>(getpid());

// Argument: the parent's description of the memory. Copies the first half of
// the memory into the second half.
const ChildRole kMapper("memory mapper", [](const auto& arguments) {
  const auto theirs =
      mapShared(static_cast<uint32_t>(getppid()), fromHex(arguments.at(0)));
  const auto half = theirs.size() / 2;
  std::memcpy(theirs.data() + half, theirs.data(), half);
  return theirs.size() == kSize ? 0 : 2;
});

TEST(SharedMemoryTest, AnotherProcessReadsAndWritesIt) {
  const SharedMemory memory(kSize);
  const auto bytes = pattern(kSize / 2);
  std::memcpy(memory.data(), bytes.data(), bytes.size());
  ChildProcess child("memory mapper", {toHex(memory.describe())});
  EXPECT_EQ(child.join(), 0);
  EXPECT_EQ(
      std::memcmp(memory.data() + bytes.size(), bytes.data(), bytes.size()), 0);
}

TEST(SharedMemoryTest, IsOfZerosAndStaysUntilTheLastHasLetGoOfIt) {
  std::optional<SharedMemory> memory(std::in_place, kSize);
  const auto other = mapShared(kSelf, memory->describe());
  memory->data()[0] = std::byte{7};
  memory.reset();
  EXPECT_EQ(other.data()[0], std::byte{7});
  EXPECT_EQ(other.data()[kSize - 1], std::byte{0});
}

TEST(SharedMemoryTest, WhatIsGoneIsNotTakenForWhatHasItsNumberNow) {
  std::optional<SharedMemory> memory(std::in_place, kSize);
  const auto gone = memory->describe();
  memory.reset();
  const SharedMemory next(kSize);
  const auto late = statusOf([&] { mapShared(kSelf, gone); });
  EXPECT_TRUE(mentions(late, "has closed the descriptor")) << late.message();
}

TEST(SharedMemoryTest, DescriptionsAreNotTrusted) {
  const SharedMemory memory(kSize);
  const auto honest = memory.describe();
  const auto refusal = [&](const Bytes& told, uint32_t pid = kSelf) {
    return statusOf([&] { mapShared(pid, told); });
  };
  EXPECT_TRUE(refusal(honest).ok());
  for (size_t i = 0; i < honest.size(); ++i) {
    auto lie = honest;
    lie[i] ^= std::byte{1};
    EXPECT_FALSE(refusal(lie).ok()) << i;
    lie.resize(i);
    EXPECT_EQ(refusal(lie).code(), ErrorCode::kTransportFailed) << i;
  }
  auto longer = honest;
  longer.push_back(std::byte{0});
  EXPECT_EQ(refusal(longer).code(), ErrorCode::kTransportFailed);
  EXPECT_TRUE(mentions(refusal(honest, 0), "can't be read"));
  EXPECT_TRUE(mentions(refusal(honest, 0x7fffffff), "pidfd_open"));
}

} // namespace
} // namespace dlslime::testing
