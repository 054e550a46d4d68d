#pragma once

#include <algorithm>
#include <mutex>
#include <string>
#include <vector>

#include "base/log.h"

namespace dlslime::testing {

// Keeps the log's lines instead of writing to stderr, during its life.
class LogCapture {
 public:
  explicit LogCapture(LogLevel level = LogLevel::kWarning) {
    setLogLevel(level);
    setLogSink([this](LogLevel, const std::string& line) {
      const std::lock_guard<std::mutex> guard(mutex_);
      lines_.push_back(line);
    });
  }
  ~LogCapture() {
    setLogSink({});
    setLogLevel(LogLevel::kWarning);
  }
  LogCapture(const LogCapture&) = delete;
  LogCapture& operator=(const LogCapture&) = delete;

  // Returns the number of lines that contain `text`.
  size_t count(const std::string& text) const {
    const std::lock_guard<std::mutex> guard(mutex_);
    return static_cast<size_t>(std::count_if(
        lines_.begin(), lines_.end(), [&](const std::string& line) {
          return line.find(text) != std::string::npos;
        }));
  }
  std::string all() const {
    const std::lock_guard<std::mutex> guard(mutex_);
    std::string text;
    for (const auto& line : lines_) {
      text += line + "\n";
    }
    return text;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
};

} // namespace dlslime::testing
