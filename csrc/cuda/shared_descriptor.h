#pragma once

#include <atomic>
#include <cstdint>

#include "core/fork_guard.h"
#include "core/status.h"

namespace dlslime::cuda {

// A descriptor that other processes of this host copy out of this one by its
// number. When it is closed, its number may become that of another one before
// all of them have done so; so there is a word beside it that says whose it is,
// which they read out of our memory after they have copied it.
class SharedDescriptor {
 public:
  // `id`: of what it is for; never zero, nor the same for anything else.
  SharedDescriptor(UniqueFd fd, uint64_t id) : fd_(std::move(fd)), id_(id) {}
  ~SharedDescriptor() {
    id_.store(0); // before the number is free
  }
  SharedDescriptor(const SharedDescriptor&) = delete;
  SharedDescriptor& operator=(const SharedDescriptor&) = delete;

  int number() const {
    return fd_.get();
  }
  // The address of the word.
  uint64_t proof() const {
    return reinterpret_cast<uint64_t>(&id_);
  }

 private:
  const UnforkedFd fd_;
  std::atomic<uint64_t> id_;
  static_assert(std::atomic<uint64_t>::is_always_lock_free);
};

// It has been closed since it was told of: its owner may tell of another one.
class OutdatedDescriptor : public Error {
 public:
  using Error::Error;
};

// A copy of the descriptor that process `pid` has told of. Throws
// OutdatedDescriptor, or Error{kUnavailable}: it can't be had, and why.
UniqueFd fetchDescriptor(uint32_t pid, int number, uint64_t proof, uint64_t id);

} // namespace dlslime::cuda
