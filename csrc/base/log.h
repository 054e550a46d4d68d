#pragma once

#include <functional>
#include <string>

#include "base/library/api.h"

namespace dlslime {

enum class LogLevel { kError = 0, kWarning, kInfo, kDebug };

// Receives each finished text, without a trailing newline. Any thread may call
// a sink, holding the log's mutex: a sink must not log.
using LogSink = std::function<void(LogLevel, const std::string&)>;

void setLogLevel(LogLevel level);
// Replaces stderr as the place of log lines; an empty sink restores stderr.
// Tests count lines with a sink.
void setLogSink(LogSink sink);
bool logEnabled(LogLevel level);
DLSLIME_API void log(LogLevel level, const std::string& line);

// Logs to stderr that `what` failed for want of memory, past all sinks and
// without allocating.
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
