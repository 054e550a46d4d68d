#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "cuda/driver/cuda_api.h"

namespace fake_cuda {

using dlslime::cuda::Result;

// What an event or a stream has come to: set once.
class Point {
 public:
  void reach(Result how);
  bool reached() const {
    return reached_.load(std::memory_order_acquire);
  }
  // Once reached: whether the device had failed by then.
  Result result() const {
    return result_;
  }
  std::chrono::steady_clock::time_point when() const {
    return when_;
  }
  void wait();

 private:
  std::chrono::steady_clock::time_point when_;
  Result result_ = Result::kSuccess;
  std::atomic<bool> reached_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
};
using PointPtr = std::shared_ptr<Point>;

// Streams that share a hardware queue: what was given to any of them first is
// done first, and what waits in one holds up the others.
class HardwareQueue {
 public:
  // Of a piece of work, given while no other is given.
  uint64_t take();
  void await(uint64_t turn);
  void done();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t given_ = 0;
  uint64_t served_ = 0;
};

// Work that runs in order, on a thread of its own, late and out of step with
// other threads and with other streams. CUDA_DEVICE_MAX_CONNECTIONS says how
// many hardware queues the streams share; where it is not set each has its own.
class StreamQueue {
 public:
  explicit StreamQueue(int of);
  ~StreamQueue();
  StreamQueue(const StreamQueue&) = delete;
  StreamQueue& operator=(const StreamQueue&) = delete;

  // False from `work`: the device has failed, and nothing after it runs.
  void enqueue(std::function<bool()> work);
  // A point behind all that was given so far, reached in any case. Whoever
  // has waited for it finds the stream idle, if nobody gave it more.
  PointPtr mark();
  bool idle();
  Result result() const {
    return failed_ ? Result::kIllegalAddress : Result::kSuccess;
  }

  const int device;

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  struct Work {
    std::function<bool()> run; // none: a mark
    PointPtr mark;
    uint64_t turn = 0; // in the hardware queue that is shared
  };
  void push(Work work);
  void waitForRoom();

  HardwareQueue* const shared_; // null: the stream has its own
  std::deque<Work> work_;
  bool busy_ = false;
  bool stopping_ = false;
  std::atomic<bool> failed_{false};
  std::thread thread_; // once there is work
};

// For all that was given to any stream so far. As some have met it with the
// real driver, nobody gives any of them more meanwhile.
void waitForAllStreams();
// For this point, and so does each thread meanwhile that gives a stream more.
void waitKeepingOthersOut(const PointPtr& point);

// By up to so many microseconds everything begins late.
extern std::atomic<int> delayMicroseconds;

} // namespace fake_cuda
