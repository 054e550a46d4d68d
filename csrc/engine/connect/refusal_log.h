#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>

#include "base/clock.h"

namespace dlslime {

// Logs why connections are refused: each cause of each source once (those that
// differ by numbers only are one), the others as a number, at most once a
// minute. A stranger may come a million times.
class RefusalLog {
 public:
  ~RefusalLog();

  // `source`: what is the same for all connections of one origin; `text` names
  // this one.
  void note(
      const std::string& source,
      const std::string& text,
      const std::string& cause,
      TimePoint now = Clock::now());
  // Logs the number, if it is time to.
  void tell(TimePoint now);
  TimePoint next() const {
    return untold_ == 0 ? never() : next_;
  }

 private:
  static constexpr milliseconds kPause{60000};
  static constexpr size_t kMostLines = 64;
  void sayCount();

  std::set<std::pair<std::string, std::string>> told_; // source, cause
  uint64_t untold_ = 0;
  std::string last_; // of those: from where, and why
  TimePoint next_{};
};

} // namespace dlslime
