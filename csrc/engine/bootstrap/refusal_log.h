#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>

#include "base/clock.h"

namespace dlslime {

// Logs why connections are refused: a line for each cause of each source
// (causes differing only by numbers count as equal), and at most once a minute
// the count of all further refusals. A stranger may come a million times.
class RefusalLog {
 public:
  ~RefusalLog();

  // Notes a refusal. `source` is equal for all connections of an origin; `text`
  // names the connection.
  void note(
      const std::string& source,
      const std::string& text,
      const std::string& cause,
      TimePoint now = Clock::now());
  // Logs the count, when due.
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
  std::string last_; // last refusal without a line: origin and cause
  TimePoint next_{};
};

} // namespace dlslime
