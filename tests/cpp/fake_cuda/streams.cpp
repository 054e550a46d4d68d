#include "fake_cuda/streams.h"

#include <random>

namespace fake_cuda {

std::atomic<int> delayMicroseconds{50};

void Point::reach(Result how) {
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    result_ = how;
    reached_.store(true, std::memory_order_release);
  }
  changed_.notify_all();
}

void Point::wait() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return reached(); });
}

StreamQueue::~StreamQueue() {
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) {
    thread_.join();
  }
}

void StreamQueue::enqueue(std::function<bool()> work) {
  push({std::move(work), false});
}

void StreamQueue::push(Work work) {
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    work_.push_back(std::move(work));
    if (!thread_.joinable()) {
      thread_ = std::thread([this] { run(); });
    }
  }
  changed_.notify_all();
}

PointPtr StreamQueue::mark() {
  auto point = std::make_shared<Point>();
  push(
      {[this, point] {
         point->reach(result());
         return true;
       },
       true});
  return point;
}

bool StreamQueue::idle() {
  const std::lock_guard<std::mutex> guard(mutex_);
  return work_.empty() && !busy_;
}

void StreamQueue::run() {
  std::minstd_rand random(reinterpret_cast<uintptr_t>(this) >> 4);
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !work_.empty(); });
    if (work_.empty()) {
      return; // what was given is done first, as when a stream is destroyed
    }
    const auto work = std::move(work_.front());
    work_.pop_front();
    busy_ = true;
    lock.unlock();
    if (const int most = delayMicroseconds; most > 0) {
      std::this_thread::sleep_for(
          std::chrono::microseconds(random() % static_cast<unsigned>(most)));
    }
    if ((work.always || !failed_) && !work.run()) {
      failed_ = true;
    }
    lock.lock();
    busy_ = false;
  }
}

} // namespace fake_cuda
