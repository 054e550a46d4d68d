#pragma once

#include <cctype>
#include <set>
#include <string>
#include <utility>

#include "base/threads/mutex.h"

namespace dlslime {

// Remembers logged reasons, so a caller can log each reason once. Reasons
// differing only in numbers (sizes, addresses) count as equal, but not reasons
// differing in names (mlx5_0). Any thread.
class LogOnce {
 public:
  bool isNew(std::string reason) {
    reason = withoutNumbers(std::move(reason));
    const MutexLock lock(mutex_);
    // The set is bounded, because a reason may quote bytes from a peer.
    return said_.size() < kMost && said_.insert(std::move(reason)).second;
  }

  // Returns the text without words beginning with a digit.
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
  Mutex mutex_;
  std::set<std::string> said_ GUARDED_BY(mutex_); // texts without numbers
};

} // namespace dlslime
