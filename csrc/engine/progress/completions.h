#pragma once

#include <atomic>
#include <utility>

#include "engine/progress/engine_mutex.h"
#include "engine/record/flight_recorder.h"
#include "interface/operation.h"

namespace dlslime {

// Operations that have ended under the engine's lock; the second half of
// completion (freeing memory, running callbacks) still has to run outside the
// lock.
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
    // Runs the second half of completion; not under the engine's lock.
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

  // Notes the post of an operation for the flight record.
  void begin(Operation& operation) REQUIRES(kEngineLock) {
    recorder_.begin(operation);
  }
  const FlightRecorder& recorder() const REQUIRES(kEngineLock) {
    return recorder_;
  }
  // Ends an operation when nothing touches the memory any more, except perhaps
  // copies of ours from or to a GPU: with such copies under way, the operation
  // ends with the last copy.
  void finish(OperationPtr operation, Status status) REQUIRES(kEngineLock) {
    if (auto* const gpu = operation->onDevice.get()) {
      if (gpu->copies != 0) {
        gpu->ending = std::move(status);
        return;
      }
      if (!gpu->copyFailure
               .ok()) { // the first failed copy is the cause to report
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
  // Tells the caller now, although a peer may still read or write the memory:
  // the memory is kept until finish() is called as well.
  void finishEarly(const OperationPtr& operation, Status status)
      REQUIRES(kEngineLock) {
    if (operation->done()) {
      return;
    }
    operation->memoryInUse = true;
    settle(*operation, std::move(status));
    ended_.addEarly(operation);
    endFollower(*operation);
  }
  // Counts a copy of ours from or to the operation's memory on a GPU.
  static void copyBegins(Operation& operation) REQUIRES(kEngineLock) {
    ++operation.onDevice->copies;
  }
  void copyEnded(const OperationPtr& operation, const Status& status)
      REQUIRES(kEngineLock) {
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
  CopyUser userOf(const OperationPtr& operation) REQUIRES(kEngineLock) {
    return {
        [operation]() REQUIRES(kEngineLock) { copyBegins(*operation); },
        [this, operation](const Status& status)
            REQUIRES(kEngineLock) { copyEnded(operation, status); }};
  }
  // Bytes delivered since a caller last came to read received bytes. Any
  // thread.
  uint64_t unfetchedBytes() const {
    return unfetchedBytes_.load(std::memory_order_relaxed);
  }
  // Any thread.
  void noteDelivered(uint64_t bytes) {
    unfetchedBytes_.store(unfetchedBytes() + bytes, std::memory_order_relaxed);
  }
  // Any thread.
  void noteFetched() {
    unfetchedBytes_.store(0, std::memory_order_relaxed);
  }
  bool empty() const REQUIRES(kEngineLock) {
    return ended_.empty();
  }
  // Hands the ended operations to the thread about to unlock.
  Ended take() REQUIRES(kEngineLock) {
    return std::move(ended_);
  }

 private:
  void settle(Operation& operation, Status status) REQUIRES(kEngineLock) {
    recorder_.end(operation, status);
    operation.settle(std::move(status));
  }

  void endFollower(Operation& operation) REQUIRES(kEngineLock) {
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
      finish(follower, inWords([&] {
               return Status(
                   status.code(),
                   follower->describe() +
                       " failed: the bytes are in place, but the peer has not "
                       "been "
                       "told: " +
                       status.message());
             }));
    }
  }

  Ended ended_ GUARDED_BY(kEngineLock);
  FlightRecorder recorder_ GUARDED_BY(kEngineLock);
  std::atomic<uint64_t> unfetchedBytes_{0}; // a hint: updates may be lost
};

} // namespace dlslime
