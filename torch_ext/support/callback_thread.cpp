#include "torch_ext/support/callback_thread.h"

#include <exception>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "base/log.h"
#include "torch_ext/support/python_end.h"

namespace dlslime {

namespace {

// Completing a future takes microseconds, apart from the callbacks.
constexpr milliseconds kPatience{200};
// Limit of threads. Callbacks that wait for later callbacks may hold up all
// threads.
constexpr int kMostThreads = 16;

void call(const std::function<void()>& callback) {
  try {
    callback();
  } catch (const std::exception& error) {
    logError(
        std::string("a callback of a dlslime future has failed: ") +
        error.what());
  }
}

} // namespace

CallbackThread& CallbackThread::instance() {
  static auto* const one = new CallbackThread(1); // never destroyed
  return *one;
}

CallbackThread& CallbackThread::concurrent() {
  static auto* const several = new CallbackThread(kMostThreads);
  return *several;
}

uint64_t CallbackThread::post(std::function<void()> callback) {
  const MutexLock guard(mutex_);
  waiting_.push_back(std::move(callback));
  const auto free = static_cast<size_t>(threads_ - running_);
  if (free < waiting_.size() && threads_ < mostThreads_) {
    startThread();
  }
  changed_.notifyAll();
  return ++posted_;
}

// If a thread cannot be started, the next post() and
// any waiting caller try again.
void CallbackThread::startThread() {
  try {
    std::thread([this] { run(); }).detach();
    ++threads_;
  } catch (const std::system_error& error) {
    if (threads_ == 0 && !std::exchange(shortageSaid_, true)) {
      logError(
          std::string("the callbacks of futures wait, since no thread can be "
                      "started for them (ulimit -u, a container's limit of "
                      "processes): ") +
          error.what());
    }
  }
}

bool CallbackThread::awaitTurn(uint64_t ticket) {
  MutexLock lock(mutex_);
  while (begun_ < ticket) {
    if (threads_ == 0) {
      startThread();
    }
    if (running_ == threads_ && Clock::now() - since_ > kPatience) {
      return false;
    }
    changed_.waitUntil(lock, deadlineAfter(kPatience));
  }
  return true;
}

void CallbackThread::drain(milliseconds most) {
  MutexLock lock(mutex_);
  const auto deadline = deadlineAfter(most);
  while (!(waiting_.empty() && running_ == 0) &&
         changed_.waitUntil(lock, deadline)) {
  }
}

void CallbackThread::run() {
  MutexLock lock(mutex_);
  for (;;) {
    while (waiting_.empty()) {
      changed_.wait(lock);
    }
    auto callback = std::move(waiting_.front());
    waiting_.pop_front();
    ++running_;
    since_ = Clock::now();
    ++begun_;
    changed_.notifyAll();
    lock.unlock();
    if (const PythonScope scope; scope) {
      call(callback);
      callback = nullptr; // captures may need the GIL or mutex_
    } else {
      new std::function<void()>(std::move(callback));
    }
    lock.lock();
    --running_;
    changed_.notifyAll();
  }
}

} // namespace dlslime
