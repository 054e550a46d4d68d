#include "cuda/blocked_streams.h"

#include <algorithm>

namespace dlslime::cuda {

namespace {
constexpr milliseconds kPatience{1000};
// Longest pause for new blocks. A blocked stream is usually released within the
// time of a message, but may depend on the paused thread, so the pause must
// end.
constexpr milliseconds kPause{20};
constexpr milliseconds kLook{1}; // drop() notifies no thread
} // namespace

void BlockedStreams::add(const std::function<void()>& hold) {
  MutexLock lock(mutex_);
  while (paused_) {
    changed_.wait(lock);
  }
  hold();
  ++count_;
}

bool BlockedStreams::whenNone(const std::function<void()>& body) {
  MutexLock lock(mutex_);
  if (!getQuiet(lock)) {
    return false;
  }
  busySince_ = never();
  body();
  return true;
}

bool BlockedStreams::getQuiet(MutexLock& lock) {
  const auto now = Clock::now();
  if (count_ == 0) {
    return true;
  }
  busySince_ = std::min(busySince_, now);
  if (paused_ || now - busySince_ < kPatience) {
    return false;
  }
  paused_ = true;
  while (count_ != 0 && Clock::now() < now + kPause) {
    changed_.waitUntil(lock, deadlineAfter(kLook));
  }
  paused_ = false;
  busySince_ = Clock::now();
  changed_.notifyAll();
  return count_ == 0;
}

} // namespace dlslime::cuda
