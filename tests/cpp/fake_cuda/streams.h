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

// A point in a stream, reached once.
class Point {
 public:
  void reach(Result how);
  bool reached() const {
    return reached_.load(std::memory_order_acquire);
  }
  // When reached: whether the device had failed before.
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

// A hardware queue shared by streams: runs work in the order of arrival, so a
// waiting stream holds up the rest.
class HardwareQueue {
 public:
  // Returns the turn of a new piece of work. One thread at a time.
  uint64_t take();
  void await(uint64_t turn);
  void done();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t given_ = 0;
  uint64_t served_ = 0;
};

// Work that runs in order, on a thread of the stream's own, late and out of
// step with all further threads. CUDA_DEVICE_MAX_CONNECTIONS is the number of
// hardware queues shared by all streams; if unset, each stream has a queue of
// its own.
class StreamQueue {
 public:
  explicit StreamQueue(int of);
  ~StreamQueue();
  StreamQueue(const StreamQueue&) = delete;
  StreamQueue& operator=(const StreamQueue&) = delete;

  // Adds work; if `work` returns false, the device fails and no later work
  // runs.
  void enqueue(std::function<bool()> work);
  // Returns a point behind all work so far, reached also after a failure. A
  // waiter then finds the stream idle, unless the stream has got more work.
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
    std::function<bool()> run; // empty: a mark
    PointPtr mark;
    uint64_t turn = 0; // in the shared hardware queue
  };
  void push(Work work);
  void waitForRoom();

  HardwareQueue* const shared_; // null: the stream has a queue of its own
  std::deque<Work> work_;
  bool busy_ = false;
  bool stopping_ = false;
  std::atomic<bool> failed_{false};
  std::thread thread_; // started with the first work
};

// Waits for all work given to any stream. Meanwhile no thread can give work to
// any stream, as observed with real drivers.
void waitForAllStreams();
// Waits for the point; meanwhile no thread can give work to any stream.
void waitKeepingOthersOut(const PointPtr& point);

// Greatest delay before a piece of work.
extern std::atomic<int> delayMicroseconds;

} // namespace fake_cuda
