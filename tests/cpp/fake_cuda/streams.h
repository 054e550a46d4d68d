#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "cuda/cuda_api.h"

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
  void wait();

 private:
  Result result_ = Result::kSuccess;
  std::atomic<bool> reached_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
};
using PointPtr = std::shared_ptr<Point>;

// Work that runs in order, on a thread of its own, late and out of step with
// whoever gave it and with other streams.
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
  };
  void push(Work work);
  void waitForRoom();

  std::deque<Work> work_;
  bool busy_ = false;
  bool stopping_ = false;
  std::atomic<bool> failed_{false};
  std::thread thread_; // once there is work
};

// For all that was given to any stream so far. As some have met it with the
// real driver, nobody gives any of them more meanwhile.
void waitForAllStreams();

// By up to so many microseconds everything begins late.
extern std::atomic<int> delayMicroseconds;

} // namespace fake_cuda
