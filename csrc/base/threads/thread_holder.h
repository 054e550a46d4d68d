#pragma once

// DLSLIME_CHECK_THREADS: 1 in checked builds, those with a sanitizer.
#if !defined(DLSLIME_CHECK_THREADS)
#define DLSLIME_CHECK_THREADS 0 // NOLINT(cppcoreguidelines-macro-usage)
#endif

#if DLSLIME_CHECK_THREADS
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>
#endif

namespace dlslime {

#if DLSLIME_CHECK_THREADS

// Thread that may use an object now, for checks of what comments promise.
// Checked builds alone have the checks; in all other builds the class is empty.
class ThreadHolder {
 public:
  void setThis() {
    holder_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  }
  void setNone() {
    holder_.store({}, std::memory_order_relaxed);
  }
  // Ends the process with `complaint` unless setThis() was called last by the
  // calling thread.
  void requireThis(const char* complaint) const {
    if (holder_.load(std::memory_order_relaxed) != std::this_thread::get_id()) {
      std::fprintf(stderr, "dlslime: %s by this thread\n", complaint);
      std::abort();
    }
  }
  // Does the same, unless no thread is set: the first caller is set then.
  void claimThis(const char* complaint) {
    std::thread::id none;
    holder_.compare_exchange_strong(none, std::this_thread::get_id());
    requireThis(complaint);
  }

 private:
  std::atomic<std::thread::id> holder_{};
};

#else

class ThreadHolder {
 public:
  void setThis() {}
  void setNone() {}
  void requireThis(const char* /*complaint*/) const {}
  void claimThis(const char* /*complaint*/) {}
};

#endif

} // namespace dlslime
