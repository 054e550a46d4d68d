#include "base/memory/shared_pages.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <memory>

#include "base/unique_fd.h"

namespace dlslime {
namespace {

constexpr size_t kPage = 4096;

struct Unmap {
  void operator()(std::byte* data) const {
    munmap(data, 4 * kPage);
  }
};
using Mapped = std::unique_ptr<std::byte, Unmap>;

UniqueFd fileOfPages() {
  UniqueFd file(memfd_create("test", MFD_CLOEXEC));
  EXPECT_EQ(ftruncate(file.get(), 16 * kPage), 0);
  return file;
}

Mapped
mapAt(const UniqueFd& file, int flags, size_t offset, void* at = nullptr) {
  void* const data = mmap(
      at,
      4 * kPage,
      PROT_READ | PROT_WRITE,
      flags | (at != nullptr ? MAP_FIXED : 0),
      file.get(),
      static_cast<off_t>(offset));
  EXPECT_NE(data, MAP_FAILED);
  return Mapped(static_cast<std::byte*>(data));
}

TEST(SharedPages, SamePagesAtTwoAddressesAreTheSame) {
  const auto file = fileOfPages();
  const auto one = mapAt(file, MAP_SHARED, 0);
  const auto other = mapAt(file, MAP_SHARED, 2 * kPage);
  const auto first = sharedPagesOf(one.get() + 2 * kPage + 5, 10);
  const auto second = sharedPagesOf(other.get() + 5, 10);
  EXPECT_FALSE(first.file.empty());
  EXPECT_EQ(first.file, second.file);
  EXPECT_EQ(first.offset, 2 * kPage + 5);
  EXPECT_EQ(second.offset, 2 * kPage + 5);
}

TEST(SharedPages, FilesDiffer) {
  const auto file = fileOfPages(), another = fileOfPages();
  const auto one = mapAt(file, MAP_SHARED, 0);
  const auto other = mapAt(another, MAP_SHARED, 0);
  EXPECT_NE(
      sharedPagesOf(one.get(), 1).file, sharedPagesOf(other.get(), 1).file);
}

TEST(SharedPages, PrivateMemoryIsNotShared) {
  const auto file = fileOfPages();
  const auto copied = mapAt(file, MAP_PRIVATE, 0);
  EXPECT_TRUE(sharedPagesOf(copied.get(), kPage).file.empty());
  const auto heap = std::make_unique<int>(3);
  EXPECT_TRUE(sharedPagesOf(heap.get(), sizeof(int)).file.empty());
  EXPECT_TRUE(sharedPagesOf(nullptr, 5).file.empty());
}

// The kernel lists a mapping for each kind of access.
TEST(SharedPages, ProtectedPartBelongsToItsNeighbours) {
  const auto file = fileOfPages();
  const auto mapped = mapAt(file, MAP_SHARED, kPage);
  ASSERT_EQ(mprotect(mapped.get() + kPage, kPage, PROT_READ), 0);
  const auto whole = sharedPagesOf(mapped.get(), 4 * kPage);
  EXPECT_FALSE(whole.file.empty());
  EXPECT_EQ(whole.offset, kPage);
}

TEST(SharedPages, MemoryOfSeveralFilesIsTakenForNone) {
  const auto file = fileOfPages(), another = fileOfPages();
  const auto mapped = mapAt(file, MAP_SHARED, 0);
  void* const second = mmap(
      mapped.get() + 2 * kPage,
      kPage,
      PROT_READ,
      MAP_SHARED | MAP_FIXED,
      another.get(),
      0);
  ASSERT_NE(second, MAP_FAILED);
  EXPECT_TRUE(sharedPagesOf(mapped.get(), 4 * kPage).file.empty());
  EXPECT_FALSE(sharedPagesOf(mapped.get(), 2 * kPage).file.empty());
}

TEST(SharedPages, WhatWasForgottenIsLookedUpAnew) {
  const auto file = fileOfPages(), another = fileOfPages();
  const auto mapped = mapAt(file, MAP_SHARED, 0);
  const auto before = sharedPagesOf(mapped.get(), 1).file;
  const auto again = mapAt(another, MAP_SHARED, 0, mapped.get());
  forgetMappings();
  const auto after = sharedPagesOf(again.get(), 1).file;
  EXPECT_FALSE(after.empty());
  EXPECT_NE(before, after);
}

} // namespace
} // namespace dlslime
