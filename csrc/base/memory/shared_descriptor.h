#pragma once

#include <atomic>
#include <cstdint>

#include "base/fork_guard.h"
#include "base/library/api.h"
#include "base/status.h"

namespace dlslime {

// Address and value of the word that a SharedDescriptor has while open.
struct DescriptorProof {
  uint64_t address = 0;
  uint64_t word = 0;
};

// Descriptor that processes of the host copy by number. After a close the
// number may belong to a new descriptor before all peers have copied the old;
// so each SharedDescriptor draws a word of its own, and a peer reads the word
// from our memory after copying.
class DLSLIME_API SharedDescriptor {
 public:
  // Throws Error if there are no random numbers.
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
  std::atomic<uint64_t> word_; // zero once closed
  static_assert(std::atomic<uint64_t>::is_always_lock_free);
};

// Error for a descriptor closed since it was described; the owner may describe
// a new descriptor.
class DLSLIME_API OutdatedDescriptor : public Error {
 public:
  using Error::Error;
};

// Error for a descriptor that this process may not copy by number; the owner
// may pass the descriptor over a socket instead (passed_descriptors.h).
class DLSLIME_API UnfetchableDescriptor : public Error {
 public:
  using Error::Error;
};

// Returns a copy of descriptor `number` of process `pid`. Throws
// OutdatedDescriptor, or UnfetchableDescriptor with the reason why no copy can
// be had.
UniqueFd
fetchDescriptor(uint32_t pid, int number, const DescriptorProof& proof);

} // namespace dlslime
