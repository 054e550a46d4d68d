#pragma once

#include <atomic>
#include <utility>

#include "interface/operation.h"

namespace dlslime {

// Operations that ended under the engine's lock and whose second half (free
// the memory, run callbacks) still has to run outside of it.
class Completions {
 public:
  class Ended {
   public:
    bool empty() const {
      return early_.empty() && over_.empty();
    }
    void addEarly(OperationPtr operation) noexcept {
      early_.push(std::move(operation));
    }
    void add(OperationPtr operation) noexcept {
      over_.push(std::move(operation));
    }
    // Not under the engine's lock.
    void tell() {
      while (const auto operation = early_.pop()) {
        operation->runCallbacks();
      }
      while (const auto operation = over_.pop()) {
        operation->release();
        operation->runCallbacks();
      }
    }

   private:
    EndedQueue early_{0}, over_{1};
  };

  // The operation is over and nothing touches its memory any more, but for
  // copies of ours: then it ends when they do.
  void finish(OperationPtr operation, Status status) {
    if (auto* const gpu = operation->onDevice.get()) {
      if (gpu->copies != 0) {
        gpu->ending = std::move(status);
        return;
      }
      if (!gpu->copyFailure.ok()) { // which is why, if it has failed
        status = gpu->copyFailure;
      }
    }
    if (!operation->done()) {
      operation->over();
      settle(*operation, std::move(status));
    } else if (std::exchange(operation->memoryInUse, false)) {
      operation->over();
    } else {
      return;
    }
    operation->stage = Operation::Stage::kDone;
    operation->holder = nullptr;
    auto& ended = *operation;
    ended_.add(std::move(operation));
    endFollower(ended);
  }
  // The caller is told now, but a peer may still read or write the memory:
  // it is kept until finish() comes as well.
  void finishEarly(const OperationPtr& operation, Status status) {
    if (operation->done()) {
      return;
    }
    operation->memoryInUse = true;
    settle(*operation, std::move(status));
    ended_.addEarly(operation);
    endFollower(*operation);
  }
  // Copies of ours from or to memory of a GPU that the operation is on.
  static void copyBegins(Operation& operation) {
    ++operation.onDevice->copies;
  }
  void copyEnded(const OperationPtr& operation, const Status& status) {
    auto& gpu = *operation->onDevice;
    if (!status.ok() && gpu.copyFailure.ok()) {
      gpu.copyFailure = inWords([&] {
        return Status(
            status.code(),
            operation->describe() + " failed: " + status.message());
      });
    }
    if (--gpu.copies == 0 && gpu.ending) {
      finish(operation, *std::exchange(gpu.ending, std::nullopt));
    }
  }
  CopyUser userOf(const OperationPtr& operation) {
    return {
        [operation] { copyBegins(*operation); },
        [this, operation](const Status& status) {
          copyEnded(operation, status);
        }};
  }
  // Bytes delivered since a caller last waited for something. Any thread.
  uint64_t unfetchedBytes() const {
    return unfetchedBytes_.load(std::memory_order_relaxed);
  }
  void noteDelivered(uint64_t bytes) {
    unfetchedBytes_.store(unfetchedBytes() + bytes, std::memory_order_relaxed);
  }
  void noteFetched() {
    unfetchedBytes_.store(0, std::memory_order_relaxed);
  }
  bool empty() const {
    return ended_.empty();
  }
  // For a caller that is about to unlock.
  Ended take() {
    return std::move(ended_);
  }

 private:
  static void settle(Operation& operation, Status status) {
    operation.settle(std::move(status));
  }

  void endFollower(Operation& operation) {
    const auto follower = std::exchange(operation.follower, nullptr);
    if (follower == nullptr) {
      return;
    }
    const auto& status = operation.status();
    if (status.ok()) {
      finish(follower, Status());
    } else if (!follower->cancelStatus.ok()) {
      finish(follower, follower->cancelStatus);
    } else {
      finish(
          follower, inWords([&] {
            return Status(
                status.code(),
                follower->describe() +
                    " failed: its bytes are there, but the peer has not been "
                    "told: " +
                    status.message());
          }));
    }
  }

  Ended ended_;
  std::atomic<uint64_t> unfetchedBytes_{0}; // a hint: lossy
};

} // namespace dlslime
