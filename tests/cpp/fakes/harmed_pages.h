#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/unique_fd.h"
#include "interface/memory.h"

namespace dlslime::testing {

constexpr size_t kPage = 4096;

// Pages of a memory file that can be cut and protected.
class Pages {
 public:
  explicit Pages(size_t count)
      : file_(memfd_create("test", MFD_CLOEXEC)), size_(count * kPage) {
    EXPECT_EQ(ftruncate(file_.get(), static_cast<off_t>(size_)), 0);
    data_ = static_cast<std::byte*>(mmap(
        nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0));
  }
  ~Pages() {
    munmap(data_, size_);
  }
  std::byte* data() const {
    return data_;
  }
  size_t size() const {
    return size_;
  }
  void protectLast(int protection) const {
    ASSERT_EQ(mprotect(data_ + size_ - kPage, kPage, protection), 0);
  }
  void cutLast() const {
    ASSERT_EQ(ftruncate(file_.get(), static_cast<off_t>(size_ - kPage)), 0);
  }

 private:
  UniqueFd file_;
  size_t size_;
  std::byte* data_ = nullptr;
};

} // namespace dlslime::testing
