#pragma once

#include <atomic>
#include <cstdint>

#include "base/fork_guard.h"
#include "base/status.h"

namespace dlslime {

// Where the word of a descriptor is, and what it is while that is open.
struct DescriptorProof {
  uint64_t address = 0;
  uint64_t word = 0;
};

// A descriptor that other processes of this host copy out of this one by its
// number. When it is closed, its number may become that of another one before
// all of them have done so; so there is a word beside it, drawn for this one
// alone, which they read out of our memory after they have copied it.
class SharedDescriptor {
 public:
  // Throws Error: there are no random numbers.
  explicit SharedDescriptor(UniqueFd fd);
  ~SharedDescriptor() {
    word_.store(0); // before the number is free
  }
  SharedDescriptor(const SharedDescriptor&) = delete;
  SharedDescriptor& operator=(const SharedDescriptor&) = delete;

  int number() const {
    return fd_.get();
  }
  DescriptorProof proof() const {
    return {reinterpret_cast<uint64_t>(&word_), word_.load()};
  }

 private:
  const UnforkedFd fd_;
  std::atomic<uint64_t> word_; // zero: it is closed
  static_assert(std::atomic<uint64_t>::is_always_lock_free);
};

// It has been closed since it was told of: its owner may tell of another one.
class OutdatedDescriptor : public Error {
 public:
  using Error::Error;
};

// A copy of the descriptor that process `pid` has told of. Throws
// OutdatedDescriptor, or Error{kUnavailable}: it can't be had, and why.
UniqueFd
fetchDescriptor(uint32_t pid, int number, const DescriptorProof& proof);

} // namespace dlslime
