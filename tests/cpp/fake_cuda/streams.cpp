#include "fake_cuda/streams.h"

#include <chrono>
#include <cstdlib>
#include <random>
#include <set>
#include <shared_mutex>
#include <vector>

namespace fake_cuda {

namespace {
struct Registry { // never destroyed: streams outlive static objects
  std::mutex mutex;
  std::set<StreamQueue*> all;
  // Held exclusively by a thread that waits for all streams: no work can be
  // given meanwhile.
  std::shared_mutex giving;
  // Launches that a stream takes; 0: any number.
  const size_t room = roomAsked();
  std::mutex launching; // held by the thread that waits for room
  // The members below are guarded by mutex.
  std::deque<HardwareQueue> hardware;
  size_t streams = 0; // number ever made

  HardwareQueue* nextHardware() {
    const char* const asked = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    const size_t count =
        asked == nullptr ? 0 : std::strtoull(asked, nullptr, 10);
    if (count == 0) {
      return nullptr;
    }
    const std::lock_guard<std::mutex> guard(mutex);
    while (hardware.size() < count) {
      hardware.emplace_back();
    }
    return &hardware[streams++ % count];
  }

  static size_t roomAsked() {
    const char* const asked = std::getenv("FAKE_CUDA_ROOM");
    return asked == nullptr ? 0 : std::strtoull(asked, nullptr, 10);
  }
};
Registry& registry() {
  static auto* made = new Registry;
  return *made;
}
} // namespace

void waitForAllStreams() {
  const std::lock_guard<std::shared_mutex> alone(registry().giving);
  std::vector<PointPtr> points;
  {
    const std::lock_guard<std::mutex> guard(registry().mutex);
    for (auto* const stream : registry().all) {
      points.push_back(stream->mark());
    }
  }
  for (const auto& point : points) {
    point->wait();
  }
}

void waitKeepingOthersOut(const PointPtr& point) {
  const std::lock_guard<std::shared_mutex> alone(registry().giving);
  point->wait();
}

std::atomic<int> delayMicroseconds{50};

void Point::reach(Result how) {
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    result_ = how;
    when_ = std::chrono::steady_clock::now();
    reached_.store(true, std::memory_order_release);
  }
  changed_.notify_all();
}

void Point::wait() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return reached(); });
}

uint64_t HardwareQueue::take() {
  const std::lock_guard<std::mutex> guard(mutex_);
  return given_++;
}

void HardwareQueue::await(uint64_t turn) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [&] { return served_ == turn; });
}

void HardwareQueue::done() {
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    ++served_;
  }
  changed_.notify_all();
}

StreamQueue::StreamQueue(int of)
    : device(of), shared_(registry().nextHardware()) {
  const std::lock_guard<std::mutex> guard(registry().mutex);
  registry().all.insert(this);
}

StreamQueue::~StreamQueue() {
  {
    const std::lock_guard<std::mutex> guard(registry().mutex);
    registry().all.erase(this);
  }
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
  const std::shared_lock<std::shared_mutex> guard(registry().giving);
  std::unique_lock<std::mutex> alone(registry().launching, std::defer_lock);
  if (registry().room != 0) {
    alone.lock();
    waitForRoom();
  }
  push({std::move(work), nullptr, 0});
}

void StreamQueue::waitForRoom() {
  for (;;) {
    {
      const std::lock_guard<std::mutex> guard(mutex_);
      if (work_.size() < registry().room) {
        return;
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void StreamQueue::push(Work work) {
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    if (shared_ != nullptr) {
      work.turn = shared_->take(); // under the lock, for the stream's order
    }
    work_.push_back(std::move(work));
    if (!thread_.joinable()) {
      thread_ = std::thread([this] { run(); });
    }
  }
  changed_.notify_all();
}

PointPtr StreamQueue::mark() {
  auto point = std::make_shared<Point>();
  push({nullptr, point, 0});
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
      return; // all given work is done before the stream ends
    }
    const auto work = std::move(work_.front());
    work_.pop_front();
    busy_ = true;
    lock.unlock();
    if (shared_ != nullptr) {
      shared_->await(work.turn);
    }
    if (const int most = delayMicroseconds; most > 0) {
      std::this_thread::sleep_for(
          std::chrono::microseconds(random() % static_cast<unsigned>(most)));
    }
    if (work.mark == nullptr && !failed_ && !work.run()) {
      failed_ = true;
    }
    if (shared_ != nullptr) {
      shared_->done();
    }
    lock.lock();
    busy_ = false;
    if (work.mark != nullptr) {
      work.mark->reach(result()); // locked: a waiter finds the queue idle
    }
  }
}

} // namespace fake_cuda
