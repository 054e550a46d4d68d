#pragma once

#include <atomic>
#include <cstring>
#include <memory>

#include "interface/operation.h"

namespace dlslime::testing {

// An operation that counts its ends, and frees its memory on release, so that
// the address sanitizer sees any later access. result() has the bytes of the
// memory.
class GuardedOperation final : public Operation {
 public:
  GuardedOperation(Kind kind, int peer, uint32_t tag, const Bytes& bytes)
      : GuardedOperation(
            kind,
            peer,
            tag,
            // At least a byte, so that empty buffers can be freed, too.
            new std::byte[bytes.empty() ? 1 : bytes.size()],
            bytes) {}

  static std::shared_ptr<GuardedOperation>
  send(int peer, uint32_t tag, const Bytes& bytes) {
    return make(Kind::kSend, peer, tag, bytes);
  }
  static std::shared_ptr<GuardedOperation>
  receive(int peer, uint32_t tag, size_t size) {
    return make(Kind::kReceive, peer, tag, Bytes(size));
  }

  int ends() const {
    return ends_;
  }
  int releases() const {
    return releases_;
  }
  // Call only after the release.
  const Bytes& result() const {
    return result_;
  }

 protected:
  void releaseMemory() override {
    ++releases_;
    result_.assign(memory_.get(), memory_.get() + view().size);
    memory_.reset();
  }

 private:
  GuardedOperation(
      Kind kind,
      int peer,
      uint32_t tag,
      std::byte* memory,
      const Bytes& bytes)
      : Operation(kind, peer, tag, {memory, bytes.size()}), memory_(memory) {
    if (!bytes.empty()) {
      std::memcpy(memory, bytes.data(), bytes.size());
    }
  }
  static std::shared_ptr<GuardedOperation>
  make(Kind kind, int peer, uint32_t tag, const Bytes& bytes) {
    auto made = std::make_shared<GuardedOperation>(kind, peer, tag, bytes);
    made->onDone([raw = made.get()] { ++raw->ends_; });
    return made;
  }

  std::unique_ptr<std::byte[]> memory_;
  Bytes result_;
  std::atomic<int> ends_{0}, releases_{0};
};
using GuardedPtr = std::shared_ptr<GuardedOperation>;

} // namespace dlslime::testing
