#pragma once

#include <cctype>
#include <mutex>
#include <set>
#include <string>

namespace dlslime {

// Tells which reasons have been logged, so that each is once. Those that differ
// only by numbers (sizes, addresses) are one. Any thread.
class SaidOnce {
 public:
  bool isNew(std::string reason) {
    std::erase_if(reason, [](unsigned char c) { return std::isdigit(c) != 0; });
    const std::lock_guard<std::mutex> guard(mutex_);
    // Bounded, since some say what a peer has sent.
    return said_.size() < kMost && said_.insert(std::move(reason)).second;
  }

 private:
  static constexpr size_t kMost = 64;
  std::mutex mutex_;
  std::set<std::string> said_; // guarded by mutex_, without their digits
};

} // namespace dlslime
