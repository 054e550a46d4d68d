#pragma once

#include <unistd.h>

#include <cstddef>
#include <string>
#include <utility>

namespace dlslime {

// Owns a file descriptor.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;
  ~UniqueFd() {
    reset();
  }

  int get() const {
    return fd_;
  }
  explicit operator bool() const {
    return fd_ >= 0;
  }
  // Returns the descriptor; the caller must close it.
  [[nodiscard]] int release() {
    return std::exchange(fd_, -1);
  }
  void reset() {
    if (fd_ >= 0) {
      ::close(std::exchange(fd_, -1));
    }
  }

 private:
  int fd_ = -1;
};

// Returns the text of an error for want of descriptors, with the process's
// limit.
std::string noDescriptorText();
// Throws Error{kExhausted} unless the process could open `count` more
// descriptors now.
void requireDescriptors(size_t count);

} // namespace dlslime
