#pragma once

#include <cctype>
#include <mutex>
#include <set>
#include <string>
#include <utility>

namespace dlslime {

// Tells which reasons have been logged, so that each is once. Those that differ
// only by numbers (sizes, addresses) are one, those by names (mlx5_0) are not.
// Any thread.
class LogOnce {
 public:
  bool isNew(std::string reason) {
    reason = withoutNumbers(std::move(reason));
    const std::lock_guard<std::mutex> guard(mutex_);
    // Bounded, since some say what a peer has sent.
    return said_.size() < kMost && said_.insert(std::move(reason)).second;
  }

  // Without words that begin with a digit.
  static std::string withoutNumbers(std::string text) {
    bool inWord = false, dropped = false;
    std::erase_if(text, [&](unsigned char c) {
      const bool part = std::isalnum(c) != 0 || c == '_';
      dropped = part && (inWord ? dropped : std::isdigit(c) != 0);
      inWord = part;
      return dropped;
    });
    return text;
  }

 private:
  static constexpr size_t kMost = 64;
  std::mutex mutex_;
  std::set<std::string> said_; // guarded by mutex_, without their numbers
};

} // namespace dlslime
