#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

namespace dlslime::testing {

// Ends the process by abort() after so many seconds, with the stacks of all
// threads on standard error.
class Watchdog {
 public:
  explicit Watchdog(int seconds);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::thread thread_;
};

// Prints the calling thread's stack to standard error.
void printStack();

} // namespace dlslime::testing
