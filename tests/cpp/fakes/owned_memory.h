#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "interface/operation.h"

namespace dlslime::testing {

// An allocation that tells its end, as a tensor's storage does.
class OwnedMemory final : public MemoryOwner {
 public:
  explicit OwnedMemory(size_t size, bool tells = true)
      : tells_(tells),
        bytes_(std::make_unique<std::byte[]>(size)),
        size_(size) {}
  ~OwnedMemory() override {
    replace(0);
  }
  MemoryView allocation() const override {
    return {bytes_.get(), size_};
  }
  bool onEnd(std::function<void()> ended) override {
    if (tells_) {
      callbacks_.push_back(std::move(ended));
    }
    return tells_;
  }
  MemoryView view(size_t offset, size_t size) {
    return {bytes_.get() + offset, size, this};
  }
  MemoryView view() {
    return view(0, size_);
  }
  void replace(size_t size) {
    for (const auto& callback : std::exchange(callbacks_, {})) {
      callback();
    }
    bytes_ = std::make_unique<std::byte[]>(size);
    size_ = size;
  }
  size_t callbacks() const {
    return callbacks_.size();
  }

 private:
  const bool tells_;
  std::unique_ptr<std::byte[]> bytes_;
  size_t size_;
  std::vector<std::function<void()>> callbacks_;
};

// A send or receive on memory for repeated use, as a tensor's.
class OwnedOperation final : public Operation {
 public:
  OwnedOperation(
      Kind kind,
      int peer,
      uint32_t tag,
      std::shared_ptr<OwnedMemory> memory)
      : Operation(kind, peer, tag, memory->view()),
        memory_(std::move(memory)) {}
  // Returns true once the engine keeps no reference to the memory.
  bool released() const {
    return released_;
  }

 private:
  void releaseMemory() override {
    released_ = true;
    memory_.reset();
  }

  std::shared_ptr<OwnedMemory> memory_;
  std::atomic<bool> released_{false};
};

} // namespace dlslime::testing
