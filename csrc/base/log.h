#pragma once

#include <functional>
#include <string>

namespace dlslime {

enum class LogLevel { kError = 0, kWarning, kInfo, kDebug };

// Receives finished lines, without a newline. Any thread.
using LogSink = std::function<void(LogLevel, const std::string&)>;

void setLogLevel(LogLevel level);
// An empty sink restores the default one (stderr). Tests count lines with it.
void setLogSink(LogSink sink);
bool logEnabled(LogLevel level);
void log(LogLevel level, const std::string& line);

// Past all sinks, and without allocating: "<what>: this process has no memory
// left".
void logWithoutMemory(const char* what) noexcept;

inline void logError(const std::string& line) {
  log(LogLevel::kError, line);
}
inline void logWarning(const std::string& line) {
  log(LogLevel::kWarning, line);
}
inline void logInfo(const std::string& line) {
  log(LogLevel::kInfo, line);
}
inline void logDebug(const std::string& line) {
  log(LogLevel::kDebug, line);
}

} // namespace dlslime
